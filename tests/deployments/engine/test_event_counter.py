"""Events are counted as they come, wherever their bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployments.engine.event_counter import EventCounter


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
