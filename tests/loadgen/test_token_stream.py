"""When tokens came, whatever form an answer has and however its bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.token_stream import TokenStream
from tests.loadgen.played_api import DONE, delta, event, usage


def fed(*chunks: bytes) -> TokenStream:
    """Each chunk comes a second after the one before."""
    times = itertools.count(1.0)
    stream = TokenStream(lambda: next(times))
    for chunk in chunks:
        stream.feed(chunk)
    return stream


@pytest.mark.parametrize(
    ("told", "has_tokens"),
    [
        (delta(role="assistant", content=""), False),
        (delta(role="assistant", content="a"), True),
        (delta(content="a"), True),
        (delta(content=""), True),
        (delta(content=None), False),
        (delta(), False),
        (delta(reasoning_content="a"), True),
        (delta(reasoning="a"), True),
        (delta(tool_calls=[{"index": 0}]), True),
        (event(choices=[{"text": ""}]), True),
        (event(choices=[]), False),
        (usage(1, 2), False),
        (b": ping\n\n", False),
        (b"event: message\n", False),
        (DONE, False),
    ],
)
def test_an_event_counts_only_if_it_has_tokens(told: bytes, has_tokens: bool) -> None:
    assert fed(told).token_times_s == ([1.0] if has_tokens else [])


WHOLE = delta(content="a\n") + usage(3, 2, 1).replace(b"\n", b"\r\n") + delta(content="b") + DONE


@given(st.lists(st.integers(0, len(WHOLE))))
def test_chunk_boundaries_do_not_change_the_parsed_stream(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    stream = fed(*(WHOLE[a:b] for a, b in itertools.pairwise(places)))
    stream.end()
    assert len(stream.token_times_s) == 2
    assert (stream.prompt_tokens, stream.output_tokens, stream.cached_tokens) == (3, 2, 1)
