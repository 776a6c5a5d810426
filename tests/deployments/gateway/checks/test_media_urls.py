"""No request makes an engine fetch what its pool's operators did not list."""

from typing import Any

import pytest

from deployments.gateway.checks.media_urls import refuse_media_urls
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import CHAT, EMBED, MESSAGES, RESPONSES
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences

LISTED = {"allowed_media_domains": ["images.example.com"]}
DATA = "data:image/png;base64,AAAA"
INSIDE = "http://169.254.169.254/latest/meta-data"


def chat(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, *parts]}]}


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def sourced(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


def shown(url: str) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}


@pytest.mark.parametrize(
    "fields",
    [
        chat(image(INSIDE)),
        chat(image("HTTPS://Metadata.internal/")),
        chat(image("http://images.example.com@10.0.0.1/")),
        chat(image("//10.0.0.1/")),
        chat(image("file:///etc/passwd")),
        chat(image("")),
        chat(image("http://[::1")),
        chat({"type": "video_url", "video_url": {"url": INSIDE}}),
        chat({"type": "audio_url", "audio_url": {"url": INSIDE}}),
        # vLLM takes these without a type, too
        chat({"image_url": INSIDE}),
        {"messages": [chat(image(INSIDE))["messages"]]},
        chat(sourced(INSIDE)),
        chat({"type": "tool_result", "tool_use_id": "1", "content": [sourced(INSIDE)]}),
        shown(INSIDE),
        {"input": [{"type": "function_call_output", "output": [{"image_url": INSIDE}]}]},
        {"input": [{"type": "computer_call_output", "output": {"image_url": INSIDE}}]},
    ],
)
@pytest.mark.parametrize("engine_args", [{}, LISTED])
def test_an_address_that_is_not_listed_is_refused(
    fields: dict[str, Any], engine_args: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_media_urls(CHAT, fields, engine_args)
    assert (refused.value.status, refused.value.code) == (400, "media_url_not_allowed")
    assert refused.value.param in fields
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    "fields",
    [
        chat(image("data:image/png;base64,AAAA"), image("DATA:;base64,")),
        chat(image("https://images.example.com/1.png")),
        shown("https://Images.Example.com:8443/1.png"),
        chat({"type": "image_url", "image_url": None}),
        chat({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        # neither is fetched
        chat({"type": "text", "text": f"image_url: {INSIDE}"}),
        {"messages": [{"role": "user", "content": INSIDE}], "tools": [{"image_url": INSIDE}]},
        {"messages": 5, "input": INSIDE},
        {"messages": [5, None], "input": [5, [1, 2], "x"]},
    ],
)
def test_inline_media_and_listed_hosts_pass(fields: dict[str, Any]) -> None:
    refuse_media_urls(CHAT, fields, LISTED)


@pytest.mark.parametrize("url", ["data:text/plain,a", "data:image/png", "DATA:,", "data:"])
@pytest.mark.parametrize("part_of", [image, sourced])
def test_data_that_is_not_in_base64_is_refused(part_of: Any, url: str) -> None:
    """vLLM answers it with a 501."""
    with pytest.raises(ApiError) as refused:
        refuse_media_urls(CHAT, chat(part_of(url)), LISTED)
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, chat({"type": "image_url", "image_url": None, "uuid": "1"})),
        (CHAT, chat({"type": "text", "text": "a", "image_url": {"url": DATA}, "uuid": ""})),
        (CHAT, chat({"type": "input_audio", "input_audio": {"data": "AAAA"}, "uuid": "1"})),
        (RESPONSES, {"input": [{"content": [{"type": "input_image", "uuid": "1"}]}]}),
        (EMBED, {"inputs": [{"content": [{**image(DATA), "uuid": "1"}]}]}),
        ("/score", {"text_1": "a", "text_2": {"content": [{**image(DATA), "uuid": "1"}]}}),
    ],
)
def test_media_in_the_cache_that_tenants_share_is_refused(
    path: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_media_urls(path, fields, {})
    assert (refused.value.status, refused.value.code) == (400, "field_not_allowed")
    assert refused.value.param in fields
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (EMBED, {"images": [INSIDE]}),
        (EMBED, {"inputs": [{"content": [image(INSIDE)]}]}),
        ("/v2/rerank", {"query": "a", "documents": [{"content": [image(INSIDE)]}]}),
        ("/v1/rerank", {"query": {"content": [image(INSIDE)]}, "documents": ["a"]}),
        ("/score", {"text_1": "a", "text_2": {"content": [image(INSIDE)]}}),
    ],
)
def test_media_urls_in_documents_are_checked(path: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        refuse_media_urls(path, fields, LISTED)
    shown = {"images": ["data:image/png;base64,AAAA"], "documents": ["a", {"content": "b"}]}
    refuse_media_urls(path, shown, LISTED)


def result(**image: Any) -> dict[str, Any]:
    return chat({"type": "tool_result", "content": [{"type": "image", **image}]})


@pytest.mark.parametrize("source", [None, "x", []])
def test_an_image_in_a_tools_result_has_a_source(source: Any) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_media_urls(MESSAGES, result(source=source), LISTED)
    assert (refused.value.status, refused.value.param) == (400, "messages")
    assert_sentences(refused.value.message)


def test_images_without_a_source_are_left_to_the_engine() -> None:
    refuse_media_urls(MESSAGES, result(), LISTED)
    refuse_media_urls(MESSAGES, chat({"type": "image", "source": None}), LISTED)


def test_an_images_field_is_ignored_on_other_paths() -> None:
    refuse_media_urls(CHAT, {**chat(), "images": [INSIDE]}, LISTED)


def test_file_urls_pass_if_the_pool_allows_a_local_media_folder() -> None:
    refuse_media_urls(CHAT, chat(image("file:///m/1.png")), {"allowed_local_media_path": "/m"})


async def test_a_gateway_does_not_forward_an_unlisted_media_url() -> None:
    engine = FakeEngine()
    async with gateway_before(engine, pool={"engine_args": LISTED}) as front:
        async with front.post(**chat(image(INSIDE))) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == "media_url_not_allowed"
        assert not engine.bodies
        async with front.post(**chat(image("https://images.example.com/1.png"))) as answer:
            assert answer.status == 200
