"""The comment that ends a stream is taken off, and nothing that a client or a model said."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployments.wire.confirmation import StreamEnd
from deployments.wire.headers import OUTPUT_TOKENS_COMMENT

COMMENT = OUTPUT_TOKENS_COMMENT + b"12\n\n"
texts = st.lists(
    st.sampled_from(
        ["a", "\n\n", ":", ": ", COMMENT.decode(), COMMENT.decode()[:9], "data: ", "5"]
    ),
    max_size=6,
).map("".join)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def through(stream: bytes, cuts: list[int]) -> tuple[bytes, int | None]:
    """What reaches the client of a stream that is read in pieces, and the number in it."""
    end, told = StreamEnd(), b""
    at = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    for begin, stop in pairwise(at):
        told += end.passed_on(stream[begin:stop])
    rest, tokens = end.rest()
    return told + rest, tokens


@given(said=st.lists(texts, max_size=4), cuts=st.lists(st.integers(0, 400), max_size=8))
@example(said=[COMMENT.decode(), "see " + COMMENT.decode() + "data: [DONE]"], cuts=[])
@example(said=["a"], cuts=list(range(400)))
def test_all_but_the_comment_reaches_the_client_however_it_is_read(
    said: list[str], cuts: list[int]
) -> None:
    stream = b"".join(map(event, said)) + b"data: [DONE]\n\n"
    assert through(stream + COMMENT, cuts) == (stream, 12)
    assert through(stream, cuts) == (stream, None)


@pytest.mark.parametrize(
    "stream",
    [
        event("a") + COMMENT + event("b"),
        event("a")[:-1] + COMMENT,
        event("a") + COMMENT[:-1],
        event("a") + OUTPUT_TOKENS_COMMENT + b"\n\n",
        event("a") + OUTPUT_TOKENS_COMMENT + b"x\n\n",
        event("a") + OUTPUT_TOKENS_COMMENT + b"9" * 30 + b"\n\n",
        b": ping\n\n",
        b"",
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_only_looks_like_it_is_the_clients(stream: bytes, step: int) -> None:
    assert through(stream, list(range(0, len(stream), step))) == (stream, None)


def test_no_event_waits_for_the_next() -> None:
    end = StreamEnd()
    assert end.passed_on(event("a")) == event("a")
    assert end.passed_on(event(COMMENT.decode())) == event(COMMENT.decode())
