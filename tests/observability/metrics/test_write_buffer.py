"""What is added up before it is written comes to the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from observability.metrics.write_buffer import WriteBuffer
from tests.fakes.front import samples_of

AMOUNTS = st.lists(st.floats(0, 100) | st.sampled_from((0.1, 1.0, 10.0)))


def samples(count: Callable[[Histogram, Counter], None]) -> dict[tuple[str, ...], float]:
    """Of a histogram and a counter, counted so."""
    registry = CollectorRegistry()
    histogram = Histogram("times", "", ["whose"], buckets=(0.1, 1, 10), registry=registry)
    counter = Counter("total", "", ["whose"], registry=registry)
    count(histogram, counter)
    found = samples_of(generate_latest(registry).decode())
    return {name: value for name, value in found.items() if not name[0].endswith("_created")}


@given(AMOUNTS, AMOUNTS)
def test_buffered_writes_equal_direct_writes(
    one_by_one: list[float], together: list[float]
) -> None:
    def directly(histogram: Histogram, counter: Counter) -> None:
        for amount in (*one_by_one, *together):
            histogram.labels("a").observe(amount)
            counter.labels("a").inc(amount)

    def by_buffer(histogram: Histogram, counter: Counter) -> None:
        buffer = WriteBuffer()
        for amount in one_by_one:
            buffer.observe(histogram, ("a",), amount)
        buffer.observe_all(histogram, ("a",), together)
        for amount in (*one_by_one, *together):
            buffer.inc(counter, ("a",), amount)
        if one_by_one or together:
            buffer.flush()
            buffer.flush()

    assert samples(by_buffer) == pytest.approx(samples(directly))
