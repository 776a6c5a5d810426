"""What vLLM would fail on is refused, by field; what it can read is not."""

import json
from typing import Any

import pytest

from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.unreadable import refuse_unreadable
from tests.sentences import assert_sentences


def refuse(body: bytes) -> None:
    refuse_unreadable(json.loads(body), body)


def assistant(content: Any) -> bytes:
    asked = {"role": "user", "content": "Hi."}
    return json.dumps({"input": [asked, {"role": "assistant", "content": content}]}).encode()


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
        (assistant([]), "input"),
        (assistant([{"type": "refusal", "refusal": "no"}]), "input"),
        (assistant([{"type": "output_text", "text": None}]), "input"),
    ],
)
def test_a_body_that_vllm_fails_on_is_refused_with_its_field(body: bytes, param: str) -> None:
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
        assistant("Hello."),
        assistant([{"type": "output_text", "text": "Hello."}, {"type": "refusal"}]),
    ],
)
def test_a_body_that_vllm_can_read_passes(body: bytes) -> None:
    refuse(body)
