"""Audio through a real gateway, with engines that report what they got."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI

from deployments.gateway.intake.keys_file import KeyRights, stored
from deployments.gateway.intake.request_body import LARGE_BODY_BYTES, estimate_audio_tokens
from deployments.wire.form_limits import MAX_PARTS
from deployments.wire.headers import SALT_HEADER
from deployments.wire.multipart import HEAD_BYTES, FormFile
from tests.fakes.completions import DEFAULT_MAX_TOKENS
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, OTHER_TENANT, TENANT, Front, gateway_before
from tests.fakes.limited_front import charges_of, limited
from tests.sentences import assert_sentences
from tests.transcription.checks import CHECKS, refusal, sound, transcription_request
from tests.transcription.fake_transcriber import FakeTranscriber
from tests.waiting import until

PATH = "/v1/audio/transcriptions"


def client_of(front: Front, key: str = KEY) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0)


async def refused(client: AsyncOpenAI, **fields: Any) -> tuple[int, str, str | None]:
    """Status, code and field of the gateway's own error."""
    error = await refusal(client, **fields)
    assert isinstance(error.body, dict)
    assert_sentences(error.body["message"])
    return error.status_code, error.code or "", error.param


@asynccontextmanager
async def gateway_with(*engines: FakeEngine, **settings: Any) -> AsyncIterator[Front]:
    async with gateway_before(*engines, **settings) as front:
        front.sees(*engines)
        yield front


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_fake_engine_keeps_the_contract(
    check: Callable[[AsyncOpenAI], Awaitable[None]],
) -> None:
    async with gateway_with(FakeTranscriber()) as front, client_of(front) as client:
        await check(client)


async def test_the_engine_gets_the_fields_of_openais_client() -> None:
    fields = {
        "language": "en",
        "prompt": "Fähre",
        "response_format": "json",
        "temperature": 0.5,
        "extra_body": {"max_completion_tokens": 7, "vllm_xargs": json.dumps({"a": 1})},
    }
    engine = FakeTranscriber()
    async with (
        gateway_with(engine, pool={"allowed_xargs": ["a"]}) as front,
        client_of(front) as client,
    ):
        await client.audio.transcriptions.create(**transcription_request(**fields))
    assert engine.forms == [
        {
            "model": MODEL,
            "file": sound(),
            "language": "en",
            "prompt": "Fähre",
            "response_format": "json",
            "temperature": "0.5",
            "max_completion_tokens": "7",
            "vllm_xargs": '{"a": 1}',
        }
    ]


async def test_a_large_file_arrives_whole() -> None:
    engine, file = FakeTranscriber(), sound(10)
    assert len(file) > LARGE_BODY_BYTES
    async with gateway_with(engine) as front, client_of(front) as client:
        await client.audio.transcriptions.create(**transcription_request(file=("a.wav", file)))
        await until(lambda: front.gateway.parts.bodies.held_bytes == 0)
    assert engine.forms[0]["file"] == file


async def test_an_alias_is_the_engines_own_name_in_the_form() -> None:
    engine = FakeTranscriber()
    models = {"scribe": {"pools": {"main": 1}}}
    async with gateway_with(engine, models=models) as front, client_of(front) as client:
        raw = await client.audio.transcriptions.with_raw_response.create(
            **transcription_request(model="scribe")
        )
    assert engine.forms[0]["model"] == MODEL == raw.headers["x-antefix-model"]
    assert engine.forms[0]["file"] == sound()


async def test_a_cache_salt_is_sent_in_a_header_and_differs_by_tenant() -> None:
    engine = FakeTranscriber()
    tenants: dict[str, Any] = {TENANT: {}, OTHER_TENANT: {}}
    async with gateway_with(engine, tenants=tenants) as front:
        front.accepts({OTHER_KEY: OTHER_TENANT})
        for key, fields in ((KEY, {}), (KEY, {}), (OTHER_KEY, {}), (KEY, {"cache_salt": "a"})):
            async with client_of(front, key) as client:
                await client.audio.transcriptions.create(**transcription_request(extra_body=fields))
    one, again, other, own = (headers[SALT_HEADER] for headers in engine.headers)
    assert one == again
    assert len({one, other, own}) == 3


async def test_every_pool_that_cannot_transcribe_says_so() -> None:
    async with gateway_with(FakeEngine()) as front, client_of(front) as client:
        assert await refused(client) == (400, "unsupported_endpoint", "model")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"model": "none"}, (404, "model_not_found", "model")),
        ({"model": ""}, (400, "missing_required_parameter", "model")),
        ({"extra_body": {"vllm_xargs": '{"b": 1}'}}, (400, "field_not_allowed", "vllm_xargs")),
        ({"extra_body": {"vllm_xargs": "{"}}, (400, "invalid_value", "vllm_xargs")),
        ({"extra_body": {"vllm_xargs": "[" * 100_000}}, (400, "invalid_value", "vllm_xargs")),
        ({"extra_body": {"vllm_xargs": '{"a": 1e999}'}}, (400, "invalid_value", "vllm_xargs")),
        ({"extra_body": {"n": 9, "use_beam_search": True}}, (400, "invalid_value", "n")),
        ({"extra_body": {"cache_salt": ""}}, (400, "invalid_cache_salt", "cache_salt")),
        ({"file": ("a.wav", b"\x00" * 100_000)}, (413, "body_too_large", None)),
    ],
)
async def test_a_gateway_refuses_invalid_forms(
    fields: dict[str, Any], found: tuple[int, str, str | None]
) -> None:
    engine = FakeTranscriber()
    limits: dict[str, Any] = {"pool": {"allowed_xargs": ["a"]}}
    if found[0] == 413:
        limits["max_body_bytes"] = 90_000
    async with gateway_with(engine, **limits) as front, client_of(front) as client:
        assert await refused(client, **fields) == found
        assert front.gateway.parts.bodies.held_bytes == 0
    assert not engine.forms


@pytest.mark.parametrize("fields", [{"n": 9}, {"vllm_xargs": ""}, {"stream": ""}, {"seed": ""}])
async def test_fields_that_an_engine_accepts_pass(fields: dict[str, Any]) -> None:
    """`n` counts for beams only, and an empty text is no value."""
    async with gateway_with(FakeTranscriber()) as front, client_of(front) as client:
        assert (
            await client.audio.transcriptions.create(**transcription_request(extra_body=fields))
        ).text


@pytest.mark.parametrize(
    ("content_type", "body", "found"),
    [
        ("application/json", b'{"model": "small"}', (415, "unsupported_content_type", None)),
        ("", b"", (415, "unsupported_content_type", None)),
        ("multipart/form-data", b"--b--\r\n", (400, "invalid_form", None)),
        ("multipart/form-data; boundary=b", b"--b", (400, "invalid_form", None)),
        ("multipart/form-data; boundary=b", b"", (400, "invalid_form", None)),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\ncontent-disposition: form-data; name=a\r\n\r\n\r\n" * (MAX_PARTS + 1)
            + b"--b--",
            (400, "invalid_form", None),
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nhere\r\n--b--',
            (400, "missing_required_parameter", "file"),
        ),
        (
            "multipart/form-data; boundary=b",
            b"--b--",
            (400, "missing_required_parameter", "file"),
        ),
    ],
)
async def test_a_body_without_a_file_is_refused(
    content_type: str, body: bytes, found: tuple[int, str, str | None]
) -> None:
    async with gateway_with(FakeTranscriber()) as front:
        headers = {**front.headers, "content-type": content_type}
        async with front.http.post(front.url + PATH, data=body, headers=headers) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"], error["param"]) == found
            assert_sentences(error["message"])


async def test_keys_and_their_models_are_checked(tmp_path: Path) -> None:
    models = {"other": {"pools": {"main": 1}}}
    file, rights = tmp_path / "keys", KeyRights(models=frozenset({"other"}))
    file.write_text(stored(TENANT, OTHER_KEY, rights).line() + "\n")
    async with gateway_with(FakeTranscriber(), models=models) as front:
        front.gateway.parts.keys.take(file)
        async with client_of(front, OTHER_KEY) as client:
            assert await refused(client) == (403, "model_not_allowed", "model")
            assert (
                await client.audio.transcriptions.create(**transcription_request(model="other"))
            ).text
        async with client_of(front, "sk-wrong") as client:
            assert (await refused(client))[0] == 401


async def test_a_request_is_sent_to_another_engine_when_its_own_is_lost() -> None:
    first, second = FakeTranscriber("r0"), FakeTranscriber("r1")
    first.dies_after = 0
    async with gateway_with(first, second) as front, client_of(front) as client:
        assert (await client.audio.transcriptions.create(**transcription_request())).text
    assert second.forms[0]["file"] == sound()


async def test_an_interrupted_stream_ends_in_an_error() -> None:
    first, second = FakeTranscriber("r0"), FakeTranscriber("r1")
    first.dies_after = 2
    async with gateway_with(first, second) as front, client_of(front) as client:
        stream = await client.audio.transcriptions.create(**transcription_request(stream=True))
        with pytest.raises(APIError) as broken:
            [event async for event in stream]
    assert not isinstance(broken.value, APIStatusError)
    assert broken.value.code == "engine_unavailable"
    assert not second.forms


async def test_requests_are_no_conversation_and_split_over_pools() -> None:
    one, two = FakeTranscriber(), FakeTranscriber("r1", model="two")
    models = {"scribe": {"pools": {"main": 1, "small": 1}}}
    async with gateway_before(one, small=two, models=models) as front, client_of(front) as client:
        front.sees(one)
        front.sees(two, pool="small")
        for _ in range(30):
            await client.audio.transcriptions.create(**transcription_request(model="scribe"))
    assert len(one.forms) + len(two.forms) == 30
    assert one.forms
    assert two.forms[0]["model"] == "two"


async def test_a_form_that_loses_engines_is_known_by_another_boundary() -> None:
    engines = [FakeTranscriber(f"r{number}") for number in range(3)]
    for engine in engines:
        engine.dies_after = 0
    async with gateway_with(*engines, retries=1) as front, client_of(front) as client:
        assert (await refused(client))[:2] == (503, "engines_lost")
        sent = sum(len(engine.bodies) for engine in engines)
        assert (await refused(client))[:2] == (503, "engines_lost")
        assert sum(len(engine.bodies) for engine in engines) == sent
        boundaries = {each.headers[0]["content-type"] for each in engines if each.headers}
    assert len(boundaries) == 1


async def test_a_client_that_leaves_ends_the_transcription() -> None:
    engine = FakeTranscriber()
    engine.pauses_after = 1
    async with gateway_with(engine) as front, client_of(front) as client:
        stream = await client.audio.transcriptions.create(**transcription_request(stream=True))
        await anext(aiter(stream))
        await stream.close()
        await until(lambda: engine.aborted == 1)


async def test_a_deadline_ends_the_transcription() -> None:
    engine = FakeTranscriber()
    engine.pauses_after = 1
    async with gateway_with(engine) as front, client_of(front) as client:
        hurry = {"x-antefix-timeout": "0.5"}
        assert (await refused(client, extra_headers=hurry))[:2] == (504, "deadline_exceeded")
        await until(lambda: engine.aborted == 1)


async def test_a_transcription_is_explained_and_counted_like_other_requests(redis_url: str) -> None:
    async with gateway_before(FakeTranscriber(), redis_url=redis_url) as front:
        async with client_of(front) as client:
            raw = await client.audio.transcriptions.with_raw_response.create(
                **transcription_request()
            )
        told = await front.explanation_of(raw.headers)
        estimate = estimate_audio_tokens(FormFile(len(sound()), sound()[:HEAD_BYTES]))
        assert told["prompt_tokens"] == {"counted": estimate, "confirmed": 1}
        counted = await front.metrics()
        assert counted[("antefix_output_tokens_total",)] == DEFAULT_MAX_TOKENS


async def test_a_transcription_goes_to_the_engine_with_the_least_work() -> None:
    busy, idle = FakeTranscriber("r0"), FakeTranscriber("r1")
    async with gateway_with(busy, idle) as front, client_of(front) as client:
        front.sees_queues({busy: 100_000, idle: 0})
        for _ in range(3):
            await client.audio.transcriptions.create(**transcription_request())
    assert (len(busy.forms), len(idle.forms)) == (0, 3)


@pytest.mark.parametrize("limit", [10_000, 100])  # the file is estimated at 200
async def test_a_tenant_is_charged_what_the_engine_counted(redis_url: str, limit: int) -> None:
    limits = {"limits": {"tokens_per_minute": limit}}
    async with (
        limited(redis_url, FakeTranscriber(), limits) as front,
        client_of(front) as client,
        charges_of(front) as used,
    ):
        await client.audio.transcriptions.create(**transcription_request())
        await until(lambda: bool(used))
    assert used == [1 + DEFAULT_MAX_TOKENS]
