"""Events are counted as they come, wherever their bytes are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.wire.answer_log import AnswerLog, FirstEvents
from deployments.wire.headers import RESUMABLE_HEADER, RESUME_FIELD, TOKENS_COMMENT


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_comments_do_not_count_as_events_that_a_client_has_received(piece: int) -> None:
    stream = b": alive\n\ndata: 1\n\n: alive\n\ndata: 2\n\n: alive\n\ndata: 3"
    first = FirstEvents(2)
    pieces = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    assert b"".join(map(first.dropped_from, pieces)) == b": alive\n\ndata: 3"


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
    body = log.body_to_resume(b'{"logprobs":true}' if wants else b'{"n":1}')
    known = json.loads(body)[RESUME_FIELD]
    assert len(known["chunks"]) == (seen if wants else told)
    assert known["events"] == len(blocks) - told
    assert log.output_tokens == told  # while no other engine resumes it
    log.resumes()
    assert log.output_tokens == (seen if wants else told)
    log.add_tokens(TOKENS_COMMENT + b"0 7")
    again = log.body_to_resume(b'{"n":1}')
    # the tokens that the last engine did not get are gone: it has generated others in their place
    sent = known["chunks"]
    assert json.loads(again)[RESUME_FIELD]["chunks"] == [*sent, [0, [7]]]


@given(
    st.lists(st.lists(st.integers(0, 99_999), min_size=1, max_size=4), max_size=8),
    st.integers(0, 8),
    st.lists(st.integers(0, 99_999), min_size=1, max_size=4),
)
def test_an_engine_continues_after_exactly_the_tokens_that_it_got(
    told: list[list[int]], seen: int, more: list[int]
) -> None:
    """Those whose event the client has, and then its own."""
    log = AnswerLog()
    log.begin({RESUMABLE_HEADER: "engine"})
    log.add_events([ROLE])
    for number, ids in enumerate(told):
        log.add_tokens(comment_of(ids))
        if number < seen:
            log.add_events([TOKEN])
    kept = told[:seen]
    assert chunks_sent(log) == [[0, ids] for ids in kept]
    log.resumes()
    assert log.output_tokens == sum(map(len, kept))
    log.add_tokens(comment_of(more))
    log.add_events([TOKEN])
    assert chunks_sent(log) == [[0, ids] for ids in [*kept, more]]
    log.resumes()
    assert log.output_tokens == sum(map(len, kept)) + len(more)


def comment_of(ids: list[int]) -> bytes:
    return TOKENS_COMMENT + b"0 " + b",".join(b"%d" % each for each in ids)


def chunks_sent(log: AnswerLog) -> list[list[object]]:
    """Return what the next engine gets, for a request with logprobs."""
    body = log.body_to_resume(b'{"logprobs":true}')
    chunks: list[list[object]] = json.loads(body)[RESUME_FIELD]["chunks"]
    return chunks
