"""An error inside a stream has the shape of the stream's API."""

import json
from typing import Any

from deployments.gateway.answer.stream_errors import error_event
from deployments.gateway.api.load_codes import ENGINE_UNAVAILABLE
from deployments.gateway.intake.api_errors import ApiError

ERROR = ApiError(ENGINE_UNAVAILABLE, "The engine\nstopped.", param="p", retry_after=1)


def data_of(event: bytes) -> Any:
    assert event.endswith(b"\n\n")
    return json.loads(event.removesuffix(b"\n\n").rpartition(b"data: ")[2])


def test_chat_and_completions_have_the_error_answer_as_one_event() -> None:
    event = error_event("openai", ERROR, 3, "id")
    assert event.startswith(b"data: ")
    assert event.count(b"\n") == 2
    assert data_of(event) == ERROR.body()


def test_a_response_has_its_error_event_and_the_error_that_clients_look_for() -> None:
    event = error_event("responses", ERROR, 3, "id")
    assert event.startswith(b"event: error\ndata: ")
    assert event.count(b"\n") == 3
    assert data_of(event) == {
        "type": "error",
        "code": "engine_unavailable",
        "message": "The engine\nstopped.",
        "param": "p",
        "sequence_number": 3,
        "error": {
            "message": "The engine\nstopped.",
            "type": "server_error",
            "param": "p",
            "code": "engine_unavailable",
        },
    }


def test_messages_have_the_error_answer_in_an_event_of_its_name() -> None:
    event = error_event("anthropic", ERROR, 3, "id")
    assert event.startswith(b"event: error\ndata: ")
    assert event.count(b"\n") == 3
    assert data_of(event) == {
        "type": "error",
        "error": {
            "message": "The engine\nstopped.",
            "type": "overloaded_error",
            "param": "p",
            "code": "engine_unavailable",
        },
        "request_id": "id",
    }
