"""An error that an engine reports as an event of its stream is read as the answer that it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.attempt.engine_errors import EngineError, error_at_the_beginning, error_in

CREATED = b'event: response.created\ndata: {"type": "response.created"}\n\n'
IN_PROGRESS = b'event: response.in_progress\ndata: {"type": "response.in_progress"}\n\n'
TOKEN = b'data: {"choices": [{"text": "{\\"error\\": 1}"}]}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"error": null}\n\n'
COMMENTS = b": keep-alive\n\n: antefix-output-tokens 1\n\n"
TOLD = {"message": "no such token", "param": "logit_bias", "code": 400}
REFUSAL = b"data: " + json.dumps({"error": TOLD}).encode() + b"\n\n"
OF_A_RESPONSE = b"event: error\ndata: " + json.dumps({"type": "error", "error": TOLD}).encode()


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (REFUSAL, 400),
        (OF_A_RESPONSE, 400),
        (b'event: error\ndata: {"type": "error", "code": "invalid_value", "message": "no"}', 400),
        (b'data: {"error": {"message": "", "code": 503}}', 503),
        (b'data: {"error": {"message": "", "code": "422"}}', 422),
        (b'data: {"error": {"message": "", "code": 7}}', 500),
        (b'data: {"error": {"message": ""}}', 500),
        (b'data: {"error": "text"}', 500),
        (b'data: {"error": [', 500),
        (b"event: error\ndata: []", 500),
        (b"event: error\n", 500),
    ],
)
def test_an_error_event_has_the_status_of_its_code(event: bytes, status: int) -> None:
    error = error_in(event.removesuffix(b"\n\n"))
    assert error is not None
    assert error.status == status


@pytest.mark.parametrize("event", [TOKEN, DELTA, b'data: {"error": null}', b"data: [DONE]", b""])
def test_other_events_are_not_errors(event: bytes) -> None:
    assert error_in(event.removesuffix(b"\n\n")) is None


def test_the_error_keeps_the_engines_message() -> None:
    for event in (REFUSAL, OF_A_RESPONSE):
        error = error_in(event.removesuffix(b"\n\n"))
        assert error is not None
        assert json.loads(error.body) == {"error": TOLD}


@pytest.mark.parametrize(("status", "is_dead"), [(500, True), (400, False)])
def test_only_a_failure_can_say_that_the_engine_is_dead(status: int, is_dead: bool) -> None:
    body = b'{"error": {"message": "EngineCore encountered an issue."}}'
    assert EngineError(status, body).is_dead == is_dead


@pytest.mark.parametrize("before", [b"", COMMENTS, CREATED + IN_PROGRESS, CREATED + COMMENTS])
@given(cut=st.integers(0, 500))
def test_a_stream_is_judged_by_its_first_event_as_soon_as_that_arrives(
    before: bytes, cut: int
) -> None:
    for event in (REFUSAL, OF_A_RESPONSE + b"\n\n"):
        stream = before + event
        found = error_at_the_beginning((stream + TOKEN)[:cut])
        expected = error_in(event.removesuffix(b"\n\n")) if cut >= len(stream) else "undecided"
        assert found == expected
    for event in (TOKEN, DELTA):
        stream = before + event + REFUSAL
        undecided = cut < len(before) + len(b"data: {") if event == TOKEN else cut < len(before)
        if undecided:
            assert error_at_the_beginning(stream[:cut]) == "undecided"
        elif cut >= len(before + event):
            assert error_at_the_beginning(stream[:cut]) is None


def test_data_outside_events_is_passed_on_at_once() -> None:
    assert error_at_the_beginning(b"not an event") is None
    assert error_at_the_beginning(b"data: \xf0\x9f") is None
