"""Events are counted as they come, wherever their bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.wire.answer_log import EventCounter, FirstEvents


def events_in(stream: bytes) -> int:
    return sum(not block.startswith(b":") for block in stream.split(b"\n\n")[:-1])


@given(st.lists(st.text(":a\n", max_size=6).map(str.encode), max_size=30))
def test_it_counts_what_the_whole_stream_has(parts: list[bytes]) -> None:
    counter, stream = EventCounter(), b""
    for part in parts:
        counter.add(part)
        stream += part
        assert counter.events == events_in(stream)


def test_a_large_event_in_many_parts_takes_time_for_its_bytes_alone() -> None:
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
