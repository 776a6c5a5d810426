"""Events are counted as they come, wherever their bytes are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.wire.answer_log import AnswerLog, EventCounter, FirstEvents
from deployments.wire.headers import RESUMABLE_HEADER, RESUME_FIELD, TOKENS_COMMENT


def events_in(stream: bytes) -> int:
    return sum(not block.startswith(b":") for block in stream.split(b"\n\n")[:-1])


@given(st.lists(st.text(":a\n", max_size=6).map(str.encode), max_size=30))
def test_it_counts_what_the_whole_stream_has(parts: list[bytes]) -> None:
    counter, stream = EventCounter(), b""
    for part in parts:
        counter.add(part)
        stream += part
        assert counter.events == events_in(stream)


def test_a_large_event_in_many_parts_takes_time_only_for_its_bytes() -> None:
    counter = EventCounter()
    looked_at = 0

    class Part(bytes):
        def __radd__(self, before: bytes) -> bytes:
            nonlocal looked_at
            looked_at += len(before) + len(self)
            return before + bytes(self)

    for _ in range(1000):
        counter.add(Part(b"x" * 10))
    assert looked_at <= 1000 * 13


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_comments_are_none_of_the_events_that_a_client_has(piece: int) -> None:
    stream = b": alive\n\ndata: 1\n\n: alive\n\ndata: 2\n\n: alive\n\ndata: 3"
    first = FirstEvents(2)
    pieces = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    assert b"".join(map(first.dropped_from_bytes, pieces)) == b": alive\n\ndata: 3"


ROLE = b'data: {"choices":[{"delta":{"role":"assistant"},"logprobs":null}]}'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"},"logprobs":{"content":[1]}}]}'


@pytest.mark.parametrize("wants", [True, False])
@pytest.mark.parametrize(
    ("blocks", "seen"),
    [
        ([], 0),
        ([b"5"], 0),
        ([b"5", ROLE], 0),
        ([b"5", ROLE, TOKEN], 1),
        ([b"5", ROLE, TOKEN, b"6"], 1),
        ([b"5", ROLE, TOKEN, b"6", TOKEN], 2),
        ([b"5", TOKEN], 1),  # of a completion
    ],
)
def test_tokens_whose_logprobs_did_not_arrive_are_generated_again(
    blocks: list[bytes], seen: int, wants: bool
) -> None:
    log = AnswerLog()
    log.begin({RESUMABLE_HEADER: "engine"})
    for block in blocks:
        if block.isdigit():
            log.add_tokens(TOKENS_COMMENT + b"0 " + block)
        else:
            log.add_events([block])
    told = sum(block.isdigit() for block in blocks)
    body = log.body_to_continue(b'{"logprobs":true}' if wants else b'{"n":1}')
    assert body is not None
    known = json.loads(body)[RESUME_FIELD]
    assert len(known["chunks"]) == (seen if wants else told)
    assert known["events"] == len(blocks) - told
    assert log.output_tokens == told  # while no other engine continues it
    log.continues()
    assert log.output_tokens == (seen if wants else told)
    log.add_tokens(TOKENS_COMMENT + b"0 7")
    again = log.body_to_continue(b'{"n":1}')
    assert again is not None
    assert json.loads(again)[RESUME_FIELD]["chunks"][-1] == [0, [7]]
