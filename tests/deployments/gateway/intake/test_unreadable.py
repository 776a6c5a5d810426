"""What vLLM would fail on is refused, by field; what it can read is not."""

import json
from typing import Any

import pytest

from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.unreadable import refuse_bad_items, refuse_unreadable
from deployments.wire.inference_paths import CHAT, MESSAGES, RESPONSES
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences


def refuse(body: bytes) -> None:
    refuse_unreadable(json.loads(body), body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"structured_outputs": 5}', "structured_outputs"),
        (b'{"structured_outputs": []}', "structured_outputs"),
        (b'{"structured_outputs": ""}', "structured_outputs"),
        (b'{"top_k": 9223372036854775808}', "top_k"),
        (b'{"seed": -9223372036854775809}', "seed"),
        (b'{"logit_bias": {"5": 1e400}}', "logit_bias"),
        (b'{"temperature": -1E+0400}', "temperature"),
        (b'{"tools": [{"function": {"parameters": {"const": 1' + b"0" * 30 + b"}}}]}", "tools"),
        (b'{"min_p": 1' + b"0" * 400 + b".0}", "min_p"),
    ],
)
def test_the_rejection_of_a_body_that_vllm_cannot_read_names_its_field(
    body: bytes, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        refuse(body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert f"'{param}'" in caught.value.message
    assert_sentences(caught.value.message)


@pytest.mark.parametrize(
    "body",
    [
        b'{"structured_outputs": null, "vllm_xargs": null, "input": null}',
        b'{"structured_outputs": {"choice": ["a"]}}',
        b'{"seed": 9223372036854775807, "user": "12345678901234567890"}',
        b'{"seed": -9223372036854775808, "top_p": 0.12345678901234567890123}',
        b'{"repetition_penalty": 1e308}',
        b'{"input": "Hi."}',
        b'{"input": [[1, 2], [3]]}',
    ],
)
def test_a_body_that_vllm_can_read_passes(body: bytes) -> None:
    refuse(body)


@pytest.mark.parametrize("number", [1, 20_000])
async def test_a_gateway_does_not_forward_invalid_items(number: int) -> None:
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        body = {"model": MODEL, "input": [{"role": "user", "content": "Hi."}, *[{}] * number]}
        url = front.url + RESPONSES
        async with front.http.post(url, json=body, headers=front.headers) as answer:
            error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "invalid_value", "input")
    assert error["message"].startswith("'input[1]' has no 'type'.")
    assert_sentences(error["message"])
    assert not engine.bodies


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (RESPONSES, {"input": [{"type": "web_search_call"}]}, "'input[0]' has the type"),
        (CHAT, {"messages": [{"role": "user", "content": "a", "prefix": True}]}, ".prefix' is"),
        (MESSAGES, {"system": [{"type": "image"}]}, "'system[0]' has the type 'image'"),
        (CHAT, {"documents": [{"a": 5}]}, "'documents[0].a' must be a string, not a number"),
        (CHAT, {"logit_bias": {"1": {}}}, "'logit_bias.1' must be a number, not an object"),
        ("/v1/completions", {"prompt": [[1, None]]}, "'prompt[0][1]' must be a whole number"),
    ],
)
def test_the_first_bad_item_is_named(path: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_bad_items(path, fields)
    assert refused.value.status == 400
    assert refused.value.param in fields
    assert message in refused.value.message
    assert_sentences(refused.value.message)
