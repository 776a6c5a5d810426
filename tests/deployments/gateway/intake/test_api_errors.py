"""What a client learns of an error, and what it does not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.api.load_codes import QUEUE_FULL
from deployments.gateway.intake.api_errors import ApiError, error_type, from_engine, shape_of
from deployments.process.error_code import ErrorCode
from tests.sentences import assert_sentences

REQUEST_ID = "request-1"


def engine_error(status: int = 400, **error: Any) -> ApiError:
    body = json.dumps({"error": {"message": "no", "type": "BadRequestError", **error}})
    return from_engine(status, body.encode(), REQUEST_ID)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422, 429])
def test_an_engines_refusal_keeps_its_status_message_and_field(status: int) -> None:
    error = engine_error(status, message="top_p must be in (0, 1]", param="top_p")
    assert (error.status, error.message, error.param) == (
        status,
        "top_p must be in (0, 1]",
        "top_p",
    )


@pytest.mark.parametrize("more", ["", ", value=['a)', (1)]", ", value=a\nb"])
def test_a_message_does_not_repeat_its_field_as_python_writes_it(more: str) -> None:
    message = f"top_p must be in (0, 1]. (parameter=top_p{more})"
    assert engine_error(message=message, param="top_p").message == "top_p must be in (0, 1]."


@pytest.mark.parametrize(
    ("message", "useful"),
    [
        (
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be '
            "set",
            "",
        ),
        (
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template.",
            "Refused request with untrusted chat template. ",
        ),
        (
            "thinking_token_budget is set but reasoning_config is not configured. Please set "
            "--reasoning-parser and/or --reasoning-config to use thinking_token_budget.",
            "thinking_token_budget is set but reasoning_config is not configured. ",
        ),
    ],
)
def test_engine_flags_are_removed_from_error_messages(message: str, useful: str) -> None:
    said = engine_error(message=message).message
    advice = (
        "The model is not configured for this request. Change the request, or ask the operators to"
        " configure the model."
    )
    assert said == useful + advice


def test_a_clients_own_text_with_dashes_is_kept() -> None:
    message = "Invalid regex: --verbose[."
    assert engine_error(message=message, param="structured_outputs").message == message


@pytest.mark.parametrize("param", ["input_tokens", "input_text"])
def test_a_prompt_that_is_too_long_has_a_separate_code(param: str) -> None:
    assert engine_error(param=param).code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("max_tokens=32000 cannot be greater than max_model_len=2048.", "max_tokens"),
        ("This model's maximum context length is 2048 tokens.", None),
        ("Input should be a valid number: 'context length'", "body.temperature"),
        ("Input should be a valid number: 'input_tokens'", "body.metadata.input_tokens"),
        ("Invalid regex: (the maximum context length", "structured_outputs"),
        ("{'loc': ('body', 'input_text')} is missing", None),
    ],
)
def test_the_wording_of_a_message_does_not_set_the_context_length_code(
    message: str, param: str | None
) -> None:
    error = engine_error(message=message, param=param)
    assert error.code == "invalid_value"
    assert error.param == (param.removeprefix("body.") if param else None)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("n must be at least 1, got 0.", "n"),
        ("presence_penalty must be in [-2, 2], got 9.0.", "presence_penalty"),
        ("frequency_penalty must be in [-2, 2], got 9.0.", "frequency_penalty"),
        ("repetition_penalty must be greater than zero, got -1.0.", "repetition_penalty"),
        ("min_p must be in [0, 1], got 7.0.", "min_p"),
        ("top_k must be 0 (disable), or at least 1, got -5.", "top_k"),
        ("min_tokens must be greater than or equal to 0, got -1.", "min_tokens"),
        ("stop cannot contain an empty string.", "stop"),
        ("stop_sequences cannot contain an empty string.", "stop_sequences"),
        ("The prompt must not be empty.", None),
        ("number must be small.", None),
    ],
)
def test_a_value_out_of_range_has_its_field(message: str, param: str | None) -> None:
    assert engine_error(message=message, param=None).param == param
    assert engine_error(message=message, param="seed").param == "seed"


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504])
def test_an_engine_failure_shows_the_request_id_and_no_internals(status: int) -> None:
    error = engine_error(status, message="Traceback (most recent call last): CUDA", param="x")
    assert (error.status, error.code, error.param) == (status, "engine_error", None)
    assert REQUEST_ID in error.message
    assert_sentences(error.message)
    assert "CUDA" not in json.dumps(error.body())


@pytest.mark.parametrize(
    "body",
    [b"", b"Bad Request", b"{}", b"[]", b"null", b'{"error": "text"}', b"\xff", b'{"error":1}'],
)
@pytest.mark.parametrize("status", [400, 418, 499])
def test_a_refusal_in_another_shape_still_becomes_one_in_openais(status: int, body: bytes) -> None:
    error = from_engine(status, body, REQUEST_ID)
    assert error.status == status
    assert str(status) in error.message
    assert_sentences(error.message)


@given(st.integers(400, 599), st.binary() | st.text().map(str.encode))
def test_no_answer_of_an_engine_raises_or_shows_a_traceback(status: int, body: bytes) -> None:
    error = from_engine(status, b"Traceback (most recent call last)" + body, REQUEST_ID)
    assert "Traceback" not in error.message


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (504, "server_error"),
    ],
)
def test_the_type_follows_from_the_status(status: int, expected: str) -> None:
    assert error_type(status) == expected


def test_the_body_has_openais_four_fields() -> None:
    body = ApiError(ErrorCode("c", 400, "", ""), "no", param="p").body()
    expected = {"message": "no", "type": "invalid_request_error", "param": "p", "code": "c"}
    assert body == {"error": expected}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_anthropics_form_has_its_types_and_our_code(status: int, expected: str) -> None:
    error = ApiError(ErrorCode("c", status, "", ""), "no", param="p")
    assert error.body("anthropic", "id") == {
        "type": "error",
        "error": {"message": "no", "type": expected, "param": "p", "code": "c"},
        "request_id": "id",
    }


@pytest.mark.parametrize(
    ("path", "headers", "shape"),
    [
        ("/v1/chat/completions", {"anthropic-version": "1"}, "openai"),
        ("/v1/responses", {}, "responses"),
        ("/v1/messages", {}, "anthropic"),
        ("/v1/messages/count_tokens", {}, "anthropic"),
        ("/v1/models", {}, "openai"),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, "anthropic"),
        ("/v1/nothing", {"anthropic-version": "2023-06-01"}, "anthropic"),
    ],
)
def test_an_error_has_the_form_of_the_api(path: str, headers: dict[str, str], shape: str) -> None:
    assert shape_of(path, headers) == shape


def test_error_headers_state_whether_to_retry() -> None:
    error = ApiError(ErrorCode("c", 429, "", "", retry="Retry-After, stop"), "no", retry_after=3)
    assert error.headers == {"retry-after": "3", "x-should-retry": "false"}


def test_an_error_that_lacks_the_header_of_its_code_cannot_be_created() -> None:
    with pytest.raises(AssertionError):
        ApiError(QUEUE_FULL, "no")
