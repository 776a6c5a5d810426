"""A real Whisper behind a real gateway. Its weights are random, so its words mean nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.every_field.serving import Served, serving
from tests.fakes.engine import MODEL
from tests.fakes.front import KEY, OTHER_KEY
from tests.transcription.checks import CHECKS, refusal, sound, transcription_request
from tests.transcription.tiny_whisper import MAX_MODEL_LEN, SECONDS

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,  # an encoder reads 30 s at once: 1,500 positions
    "enforce_eager": True,
}
# The start of a transcript, its language, its task, and that it has no times.
PROMPT_TOKENS = 4


@pytest.fixture(scope="module")
def whisper(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("whisper") / "log"
    maker = "tests.transcription.tiny_whisper"
    with serving(warm_python, ENGINE_ARGS, log, maker) as served:
        yield served


def client_of(served: Served, key: str = KEY) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_real_engine_keeps_the_contract(
    check: Callable[[AsyncOpenAI], Awaitable[None]], whisper: Served
) -> None:
    async with client_of(whisper) as client:
        await check(client)


@pytest.mark.parametrize(
    "fields",
    [
        {},  # the engine detects the language
        {"response_format": "text"},
        {"response_format": "verbose_json", "timestamp_granularities": ["segment"]},
        {"prompt": "A ferry.", "temperature": 0.5, "extra_body": {"seed": 1, "top_p": 0.5}},
        {"extra_body": {"use_beam_search": True, "n": 2}},
        {"extra_body": {"max_completion_tokens": 3}},
        {"extra_body": {"stream_include_usage": True}, "stream": True},
    ],
)
async def test_fields_of_openai_and_of_vllm_reach_the_engine(
    fields: dict[str, Any], whisper: Served
) -> None:
    fields = fields if fields == {} else {"language": "en", **fields}
    async with client_of(whisper) as client:
        raw = await client.audio.transcriptions.with_raw_response.create(
            **transcription_request(**fields)
        )
    assert raw.status_code == 200


async def test_every_piece_of_long_audio_is_charged_as_the_engine_counted_it(
    whisper: Served,
) -> None:
    """The other tenant has limits, and its charges are recorded."""
    file = ("a.wav", sound(2.5 * SECONDS))
    bounded = {"max_completion_tokens": 3}
    async with client_of(whisper, OTHER_KEY) as client:
        raw = await client.audio.transcriptions.with_raw_response.create(
            **transcription_request(file=file, language="en", extra_body=bounded)
        )
    pieces = int(raw.headers["x-antefix-prompt-tokens"]) / PROMPT_TOKENS
    assert pieces == 3
    async with httpx.AsyncClient(headers=whisper.access) as http:
        reserved, charged = (await http.get(whisper.spent_url)).json()["settled"][-1]
    assert charged == 3 * (PROMPT_TOKENS + 3) <= reserved


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"file": ("a.wav", b"RIFF")}, None),
        ({"language": "klingon"}, None),
        ({"response_format": "srt"}, None),
        ({"extra_body": {"seed": "many"}}, "seed"),
        ({"extra_body": {"temperature": "nan"}}, "temperature"),
        ({"extra_body": {"n": "many", "use_beam_search": True}}, "n"),
    ],
)
async def test_a_request_that_the_engine_refuses_is_a_400(
    fields: dict[str, Any], param: str | None, whisper: Served
) -> None:
    async with client_of(whisper) as client:
        refused = await refusal(client, **{"language": "en", **fields})
    assert (refused.status_code, refused.code) == (400, "invalid_value")
    assert param is None or refused.param == param


async def test_an_audio_model_rejects_chats(whisper: Served) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    async with httpx.AsyncClient(base_url=whisper.url, headers=headers, timeout=60) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_endpoint"
