"""A request to resume: what the replica reads from it, and what it drops from the stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.wire.resumable import (
    Known,
    NotResumable,
    ResumableExchange,
    extract_known,
    tokens_comment,
)

TOLD: dict[str, Any] = {
    "chunks": [[0, [1, 2]], [1, [3]], [0, [4]]],
    "events": 3,
    "cached_tokens": 16,
    "created": 1_700_000_000,
}
KNOWN = Known(((0, (1, 2)), (1, (3,)), (0, (4,))), 3, 16, 1_700_000_000)


def body(told: object) -> bytes:
    return json.dumps({"model": "m", "antefix_resume": told, "prompt": "é"}).encode()


def test_the_engine_gets_the_body_without_the_gateways_fields() -> None:
    without, known = extract_known(body(TOLD))
    assert known == KNOWN
    assert json.loads(without) == {"model": "m", "prompt": "é"}


def test_a_choice_has_its_own_tokens_in_order() -> None:
    assert KNOWN.token_ids(0) == [1, 2, 4]
    assert KNOWN.token_ids(1) == [3]
    assert KNOWN.token_ids(2) == []


def test_unknown_resume_fields_of_a_later_gateway_are_ignored() -> None:
    assert extract_known(body(TOLD | {"more": 1, "made_by": "x"}))[1] == Known(
        KNOWN.chunks, 3, 16, 1_700_000_000, "x"
    )


def test_ids_are_random_and_unchanged_in_a_resuming_engine() -> None:
    began, another = ResumableExchange(None), ResumableExchange(None)
    began.set_engine("engine")
    known = Known((), 0, 0, 0, began.made_by)
    assert known.engine == "engine"
    resumed = ResumableExchange(known)
    ids = [began.next_id() for _ in range(3)]
    assert len({*ids, another.next_id()}) == 4
    assert [resumed.next_id() for _ in range(3)] == ids
    resumed.set_engine("engine")
    assert resumed.made_by == began.made_by


@pytest.mark.parametrize(
    "plain",
    [
        b'{"model": "m"}',
        body(None),
        b'"antefix_resume"',
        b"antefix_resume {",
        b'{"prompt": "antefix_resume"}',
        b"",
    ],
)
def test_a_body_without_resume_data_is_not_a_resume_request(plain: bytes) -> None:
    assert extract_known(plain)[1] is None


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        "1",
        TOLD | {"events": -1},
        TOLD | {"events": True},
        TOLD | {"chunks": [[0, ["1"]]]},
        TOLD | {"chunks": [[0, 1]]},
        TOLD | {"chunks": [[0]]},
        TOLD | {"created": 1.5},
        TOLD | {"cached_tokens": None},
    ],
)
def test_fields_that_no_gateway_sends_are_refused(wrong: object) -> None:
    with pytest.raises(NotResumable, match="another release"):
        extract_known(body(wrong))


EVENTS = b'data: {"a":1}\n\nevent: x\ndata: {"b":2}\n\ndata: {"c":3}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("piece", [1, 2, 5, len(EVENTS)])
@pytest.mark.parametrize("known", range(5))
def test_the_events_that_a_client_has_are_dropped(piece: int, known: int) -> None:
    first_events = ResumableExchange(Known((), known, 0, 0)).first_events
    pieces = [EVENTS[at : at + piece] for at in range(0, len(EVENTS), piece)]
    passed_on = b"".join(map(first_events.dropped_from, pieces))
    assert passed_on == b"".join(event + b"\n\n" for event in EVENTS.split(b"\n\n")[known:-1])


def test_chunks_are_reported_once_and_in_order() -> None:
    exchange = ResumableExchange(None)
    exchange.chunk(0, [1])
    assert exchange.comments() == b""  # no engine can resume it
    exchange.offered = True
    exchange.chunk(0, [1, 2])
    exchange.chunk(1, [])
    exchange.chunk(1, (3,))
    assert exchange.comments() == b": antefix-tokens 0 1,2\n\n: antefix-tokens 1 3\n\n"
    assert exchange.comments() == b""


def test_tokens_are_sent_as_a_comment_that_event_readers_skip() -> None:
    assert tokens_comment(2, [7, 8]) == b": antefix-tokens 2 7,8\n\n"
