"""What holds for every wrong request: its sender gets an error, soon, and no fault is
Antefix's."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wrong_requests.asking import Port, WrongRequest, faults_of

AT_ONCE = 8


def assert_no_faults(
    port: Port, requests: st.SearchStrategy[WrongRequest], examples: int, until: float = 0.0
) -> None:
    """N lots of requests, and others until then by the monotonic clock.

    What Hypothesis has chosen is the same each time, unless its profile says otherwise.
    """

    @settings(max_examples=examples)
    @given(st.lists(requests, min_size=1, max_size=2 * AT_ONCE))
    def are_answered(asked: list[WrongRequest]) -> None:
        faults = asyncio.run(faults_of(port, asked))
        assert not faults, "\n".join(faults)

    are_answered()
    while time.monotonic() < until:
        are_answered()
