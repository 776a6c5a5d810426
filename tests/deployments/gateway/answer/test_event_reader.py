"""An answer is read so that another engine can resume it, and so that its client gets all."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployments.gateway.answer.event_reader import EventReader, ProgressReader
from deployments.wire import answer_log
from deployments.wire.answer_log import AnswerLog
from deployments.wire.headers import (
    ANSWER_COMMENT,
    CACHED_TOKENS_HEADER,
    OUTPUT_TOKENS_COMMENT,
    RESUMABLE_HEADER,
    RESUME_FIELD,
    TOKENS_COMMENT,
)

COMMENT = OUTPUT_TOKENS_COMMENT + b"12\n\n"
DONE = b"data: [DONE]\n\n"
BODY = b'{"model": "m", "prompt": "a } b"} '
texts = st.lists(
    st.sampled_from(
        ["a", "\n\n", ":", ": ", COMMENT.decode(), COMMENT.decode()[:9], "data: ", "5"]
    ),
    max_size=6,
).map("".join)
# a choice, and what its chunk's tokens are
chunks = st.tuples(st.integers(0, 3), st.lists(st.integers(0, 200_000), min_size=1, max_size=5))


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"created": 17, "choices": [{"text": text}]}).encode() + b"\n\n"


def tokens_comment(index: int, tokens: list[int]) -> bytes:
    return TOKENS_COMMENT + f"{index} {','.join(map(str, tokens))}\n\n".encode()


def in_pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    return [stream[begin:stop] for begin, stop in pairwise(at)]


def begun() -> AnswerLog:
    log = AnswerLog()
    log.begin({RESUMABLE_HEADER: "1", CACHED_TOKENS_HEADER: "7"})
    return log


def through(stream: bytes, cuts: list[int]) -> tuple[bytes, AnswerLog]:
    """What reaches the client of a stream that is read in pieces."""
    log = begun()
    reader = EventReader(log)
    passed = b"".join(map(reader.passed_on, in_pieces(stream, cuts)))
    return passed + reader.rest(), log


def resume_of(log: AnswerLog) -> Any:
    body = log.body_to_resume(BODY)
    fields: dict[str, Any] = json.loads(body)
    told = fields.pop(RESUME_FIELD)
    assert fields == json.loads(BODY)
    return told


@given(
    said=st.lists(st.tuples(st.lists(chunks, max_size=3), texts), max_size=4),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
@example(said=[([], COMMENT.decode()), ([(0, [1])], "see " + COMMENT.decode())], cuts=[])
@example(said=[([(0, [1])], "a")], cuts=list(range(400)))
def test_everything_except_token_comments_reaches_the_client(
    said: list[tuple[list[tuple[int, list[int]]], str]], cuts: list[int]
) -> None:
    events = b"".join(event(text) for _, text in said) + DONE
    stream = (
        b"".join(b"".join(tokens_comment(*c) for c in of) + event(text) for of, text in said) + DONE
    )
    tokens: list[Any] = [[index, ids] for of, _ in said for index, ids in of]
    ids = sum(len(ids) for _, ids in tokens)
    for end, count in ((COMMENT, max(ids, 12)), (b"", ids)):
        passed, log = through(stream + end, cuts)
        assert (passed, log.counted_tokens, log.output_tokens) == (events, count, ids)
        assert log.is_complete
        assert resume_of(log) == {
            "chunks": tokens,
            "events": len(said) + 1,
            "cached_tokens": 7,
            "created": 17 if said else 0,
            "made_by": "1",
        }


def test_a_response_is_complete_with_its_last_event() -> None:
    created = b'event: response.created\ndata: {"response": {"created_at": 17}}\n\n'
    completed = b"event: response.completed\ndata: {}\n\n"
    _, log = through(created, [])
    assert not log.is_complete
    assert resume_of(log)["created"] == 17
    assert through(created + completed, [])[1].is_complete


@given(cut=st.integers(0, 400))
def test_the_client_receives_only_whole_events_of_an_interrupted_stream(cut: int) -> None:
    stream = (tokens_comment(0, [1]) + event("a") + tokens_comment(0, [2]) + event("b") + DONE)[
        :cut
    ]
    log = begun()
    passed = EventReader(log).passed_on(stream)
    assert passed == b"".join(of + b"\n\n" for of in passed.split(b"\n\n")[:-1])
    assert resume_of(log)["events"] == passed.count(b"data: ")
    # a chunk is reported before what it made
    assert len(resume_of(log)["chunks"]) >= min(2, passed.count(b"data: "))


@pytest.mark.parametrize(
    "stream",
    [
        event("a")[:-1] + COMMENT,
        event("a") + COMMENT[:-1],
        event("a") + OUTPUT_TOKENS_COMMENT + b"\n\n",
        event("a") + OUTPUT_TOKENS_COMMENT + b"x\n\n",
        event("a") + OUTPUT_TOKENS_COMMENT + b"9" * 30 + b"\n\n",
        b": ping\n\n" + event("a"),
        b": ping\n\n",
        b"",
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_text_that_only_resembles_a_comment_of_antefix_reaches_the_client(
    stream: bytes, step: int
) -> None:
    passed, log = through(stream, list(range(0, len(stream), step)))
    assert (passed, log.counted_tokens) == (stream, 0)
    assert log.events == len([of for of in stream.split(b"\n\n")[:-1] if of[:1] == b"d"])


def test_each_event_is_passed_on_without_waiting_for_the_next() -> None:
    reader = EventReader(begun())
    assert reader.passed_on(event("a")) == event("a")
    assert reader.passed_on(tokens_comment(0, [1]) + event(COMMENT.decode())) == event(
        COMMENT.decode()
    )
    assert reader.passed_on(tokens_comment(0, [2])) == b""


@pytest.mark.parametrize(
    ("status", "message", "is_dead"),
    [
        (500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", True),
        (500, "Internal server error", False),
        (503, "The KV cache could not be loaded.", False),
    ],
)
def test_a_failure_of_the_engine_is_not_passed_on_as_an_event(
    status: int, message: str, is_dead: bool
) -> None:
    error = {"error": {"message": message, "type": "InternalServerError", "code": status}}
    log = begun()
    reader = EventReader(log)
    stream = event("a") + b"data: " + json.dumps(error).encode() + b"\n\n" + DONE
    assert reader.passed_on(stream) == event("a")
    assert reader.error is not None
    assert (reader.error.status, reader.error.is_dead) == (status, is_dead)
    assert log.events == 1


def test_a_rejection_by_the_engine_is_not_passed_on_as_an_event() -> None:
    error = {"error": {"message": "no such choice", "type": "BadRequestError", "code": 400}}
    log = begun()
    reader = EventReader(log)
    stream = event("a") + b"data: " + json.dumps(error).encode() + b"\n\n" + DONE
    assert reader.passed_on(stream) == event("a")
    assert reader.error is not None
    assert (reader.error.status, json.loads(reader.error.body)) == (400, error)
    assert log.events == 1


def test_tokens_are_counted_by_the_comments_of_the_engine_and_not_by_events() -> None:
    log = AnswerLog()
    log.begin({})
    reader = EventReader(log)
    assert reader.passed_on(COMMENT + event("a")) == event("a")
    assert log.counted_tokens == 12
    reader.passed_on(OUTPUT_TOKENS_COMMENT + b"52\n\n" + event("b"))
    assert log.counted_tokens == 52


@pytest.mark.parametrize("cuts", [[], [3, 40], list(range(200))])
def test_the_last_comment_of_a_stream_has_the_finish_reason(cuts: list[int]) -> None:
    stream = COMMENT + event("a") + DONE + OUTPUT_TOKENS_COMMENT + b"13 length\n\n"
    passed, log = through(stream, cuts)
    assert passed == event("a") + DONE
    assert log.finish_reason == "length"


def test_an_unstreamed_answer_has_the_finish_reason() -> None:
    log = begun()
    reader = ProgressReader(log)
    for piece in (
        tokens_comment(0, [1]),
        OUTPUT_TOKENS_COMMENT + b"1 stop\n\n",
        ANSWER_COMMENT + b"2\n\n{}",
    ):
        reader.take(piece)
    assert reader.answer() == (200, b"{}")
    assert (log.finish_reason, log.output_tokens) == ("stop", 1)


def test_an_engine_that_resumes_an_answer_counts_only_its_own_tokens() -> None:
    log = begun()
    EventReader(log).passed_on(tokens_comment(0, [1, 2, 3]) + event("a"))
    EventReader(log).passed_on(
        tokens_comment(0, [4]) + event("b") + OUTPUT_TOKENS_COMMENT + b"1\n\n"
    )
    assert log.counted_tokens == 4


def test_without_any_count_each_event_is_a_token() -> None:
    log = AnswerLog()
    log.begin({})
    assert log.counted_tokens is None
    EventReader(log).passed_on(event("a") + event("b"))
    assert log.counted_tokens == 2


@pytest.mark.parametrize(
    ("last", "number"),
    [
        (b'event: response.x\ndata: {"a": {"sequence_number": 9}, "sequence_number": 4}', 5),
        (b'event: response.x\ndata: {"text": "\\"sequence_number\\": 7"}', 1),
        (b"data: [DONE]", 1),
    ],
)
def test_the_next_number_continues_those_of_the_events(last: bytes, number: int) -> None:
    log = begun()
    assert log.next_number == 0
    EventReader(log).passed_on(last + b"\n\n")
    assert log.next_number == number


@given(
    cuts=st.lists(st.integers(0, 100), max_size=8), whole=st.sampled_from([b"{}", b'{"a":": "}'])
)
def test_an_answer_in_one_piece_is_separated_from_its_tokens(cuts: list[int], whole: bytes) -> None:
    stream = tokens_comment(0, [1, 2]) + tokens_comment(1, [3]) + COMMENT
    for status, answer in ((b"", b": antefix-answer %d"), (b" 500", b": antefix-answer %d 500")):
        log = begun()
        reader = ProgressReader(log)
        for piece in in_pieces(stream + answer % len(whole) + b"\n\n" + whole[:-1], cuts):
            reader.take(piece)
        assert reader.answer() is None
        reader.take(whole[-1:])
        assert reader.answer() == (int(status or 200), whole)
        assert log.output_tokens == 3
        assert resume_of(log)["chunks"] == [[0, [1, 2]], [1, [3]]]


def test_the_tokens_of_a_very_long_answer_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_log, "MOST_TOKEN_BYTES", 40)
    log = begun()
    reader = EventReader(log)
    for number in range(100):
        assert reader.passed_on(tokens_comment(0, [number]) + event("a")) == event("a")
        assert len(log._tokens) < 100
    assert not log.can_resume
    assert (log.output_tokens, log.counted_tokens) == (None, 100)


def test_an_answer_whose_engine_did_not_offer_it_is_not_resumed() -> None:
    log = AnswerLog()
    log.begin({})
    EventReader(log).passed_on(event("a"))
    assert not log.can_resume


def test_an_answer_with_unreadable_tokens_is_not_resumed() -> None:
    log = begun()
    EventReader(log).passed_on(TOKENS_COMMENT + b"0 1,x\n\n" + event("a"))
    assert not log.can_resume
