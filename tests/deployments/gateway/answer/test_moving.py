"""An engine is removed in the middle of an answer: another resumes it, if one can."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments.fleet.applications import settings_of
from deployments.gateway.answer import move, one_try
from deployments.gateway.attempt import moves
from deployments.gateway.attempt.engine_requests import EngineRequests
from tests.fakes.engine import FIRST_TOKEN_ID, FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.some import some
from tests.waiting import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ID = {"x-request-id": "abc"}
TOKENS = 6
LONG_S = 3600.0


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PERIOD_S", 0.01)
    monkeypatch.setattr(move, "AGAIN_S", 0.01)


@pytest.fixture
def movers(monkeypatch: pytest.MonkeyPatch) -> list[move.Mover]:
    """The movers of all answers from now on."""
    made: list[move.Mover] = []

    def mover(*parts: Any) -> move.Mover:
        made.append(move.Mover(*parts))
        return made[-1]

    monkeypatch.setattr(one_try, "Mover", mover)
    return made


@pytest.fixture
async def front(redis_url: str) -> AsyncIterator[Front]:
    engines = FakeEngine("r1"), FakeEngine("r2")
    async with gateway_before(
        *engines, redis_url=redis_url, request_timeout_s=60.0, move_after_s=0.0
    ) as front:
        yield front


def ask(front: Front, path: str = CHAT, **fields: Any) -> Any:
    body = {"max_tokens": TOKENS, "stream": True, **fields}
    if path == COMPLETIONS:
        body["prompt"] = "hello"
    return front.post(path, headers=ID, **body)


async def whole(front: Front, **fields: Any) -> bytes:
    async with ask(front, **fields) as answer:
        assert answer.status == 200
        return bytes(await answer.read())


async def begin(front: Front, after: int = 2, **fields: Any) -> asyncio.Task[bytes]:
    """A request whose engine has made N tokens, and makes no more until it may."""
    for engine in front.handle.engines:
        engine.pauses_after, engine.made = after, 0
        engine.go_on.clear()
    task = asyncio.create_task(whole(front, **fields))
    await until(lambda: any(engine.made == after for engine in front.handle.engines))
    return task


def answering_and_idle_engine(front: Front) -> tuple[FakeEngine, FakeEngine]:
    """Who has the only answer, and who does not."""
    first, second = front.handle.engines
    return (first, second) if first.running else (second, first)


async def mark_leaving(front: Front, engine: FakeEngine) -> None:
    """Its gateway knows."""
    engine.leaving = True
    board = front.pool.scheduler.board
    await until(lambda: board.is_leaving(engine.replica_id))


async def mark_staying(front: Front, engine: FakeEngine) -> None:
    """After all: another of its kind has come."""
    engine.leaving = False
    board = front.pool.scheduler.board
    await until(lambda: engine.replica_id in board.loads())


async def counted(front: Front, *series: str) -> dict[tuple[str, ...], float]:
    """The metrics, once that one has been counted."""
    async with asyncio.timeout(60):
        while not (found := await front.metrics())[series]:  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(0.01)
    return found


async def is_served_again(front: Front, **fields: Any) -> None:
    """The request was not lost with its engine: it is not refused."""
    for engine in front.handle.engines:
        engine.pauses_after = engine.dies_after = None
        engine.go_on.set()
    await whole(front, **fields)


def without_creation_times(answer: bytes) -> bytes:
    """Without the time at which its engine began it."""
    text = answer.decode()
    for slot in (1, 2):
        text = text.replace(str(1_700_000_000 + slot), "0")
    return text.encode()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_answer_moved_at_any_token_equals_an_unmoved_one(
    front: Front, path: str, stream: bool
) -> None:
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    expected = without_creation_times(await whole(front, path=path, stream=stream, **usage))
    for after in some(range(1, TOKENS + 1)):
        answer = await begin(front, after, path=path, stream=stream, **usage)
        there, other = answering_and_idle_engine(front)
        other.pauses_after = None
        aborted = there.aborted
        await mark_leaving(front, there)
        assert without_creation_times(await answer) == expected, after
        known = other.resumed_with.pop()
        assert known.chunks == tuple((0, (FIRST_TOKEN_ID + n,)) for n in range(after))
        await until(lambda: there.aborted == aborted + 1)  # noqa: B023
        await mark_staying(front, there)
    await until(lambda: front.handle.slots_taken == 0)
    await until(lambda: not front.pool.scheduler.has_work)


async def test_a_move_says_where_tokens_may_begin_to_differ(front: Front) -> None:
    answer = await begin(front, stream=True)
    there, other = answering_and_idle_engine(front)
    other.pauses_after, other.resumes_exactly = None, False
    await mark_leaving(front, there)
    assert (await answer).count(b": antefix-resumed continued\n\n") == 1
    await counted(front, "antefix_moved_total", "continued", "moved")


async def test_an_answer_moves_away_from_an_engine_that_may_hang(front: Front) -> None:
    expected = without_creation_times(await whole(front))
    answer = await begin(front)
    there, other = answering_and_idle_engine(front)
    other.pauses_after = None
    there.suspect = True
    assert without_creation_times(await answer) == expected
    assert other.resumed_with and there.pauses_after


async def test_an_answer_stays_if_every_engine_may_hang(
    front: Front, movers: list[move.Mover]
) -> None:
    expected = without_creation_times(await whole(front))
    answer = await begin(front)
    there, other = answering_and_idle_engine(front)
    there.suspect = other.suspect = True
    board = front.pool.scheduler.board
    await until(lambda: all(board.is_avoided(one.replica_id) for one in (there, other)))
    await until(lambda: movers[-1].moved == "stayed")
    assert not other.resumed_with
    there.go_on.set()
    assert without_creation_times(await answer) == expected


async def test_a_move_is_explained_and_counted_and_is_no_loss(front: Front) -> None:
    answer = await begin(front, stream=True)
    there, other = answering_and_idle_engine(front)
    other.pauses_after = None
    await mark_leaving(front, there)
    await answer
    metrics = await counted(front, "antefix_moved_total", "exact", "moved")
    assert metrics["antefix_moved_total", "exact", "moved"] == 1
    assert metrics["antefix_moved_total", "", "stayed"] == 0
    assert metrics["antefix_resumed_total", "exact", "resumed"] == 0
    assert metrics["antefix_requests_total", "ok", "interactive"] == 1
    assert metrics["antefix_output_tokens_total",] == TOKENS
    assert metrics["antefix_ttft_seconds_count", "interactive"] == 1
    async with asyncio.timeout(60):
        while "moved" not in (explanation := await front.explanation_of(ID)):  # noqa: ASYNC110  # each look is a request
            await asyncio.sleep(0.01)
    assert explanation["replica"] == there.replica_id
    moved = explanation["moved"]
    assert (moved["replica"], moved["tokens"]) == (other.replica_id, 2)
    assert moved["waited_s"] >= 0
    await is_served_again(front)


async def test_an_answer_moves_each_time_its_engine_is_removed(front: Front) -> None:
    answer = await begin(front, 1)
    there, other = answering_and_idle_engine(front)
    other.pauses_after = 3
    await mark_leaving(front, there)
    await until(lambda: other.made == 2)
    there.pauses_after = None
    await mark_staying(front, there)
    await mark_leaving(front, other)
    text = (await answer).decode()
    assert [text.count(f"t{n} ") for n in range(1, TOKENS + 1)] == [1] * TOKENS
    await counted(front, "antefix_moved_total", "exact", "moved")
    async with asyncio.timeout(60):
        while (await front.explanation_of(ID)).get("moved", {}).get("tokens") != 3:  # noqa: ASYNC110  # each look is a request
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("why", ["full", "cannot", "old", "dies", "absent"])
async def test_an_answer_finishes_on_its_leaving_engine_when_no_other_engine_can_resume_it(
    front: Front, movers: list[move.Mover], why: str, stream: bool
) -> None:
    expected = without_creation_times(await whole(front, stream=stream))
    answer = await begin(front, stream=stream)
    there, other = answering_and_idle_engine(front)
    asked = len(other.bodies)
    if why == "full":
        other.tickets.limit = 0
        front.handle.may_pick.clear()
    elif why == "absent":
        other.leaving = True
        await mark_leaving(front, other)
    other.offers_resumable = why != "old"
    other.refuses_to_resume = why == "cannot"
    other.dies_after = 0 if why == "dies" else None
    await mark_leaving(front, there)
    await until(lambda: movers[-1].moved == "stayed")
    if why in ("cannot", "old", "dies"):
        await until(lambda: len(other.bodies) > asked)
        await asyncio.sleep(0.1)  # several offers later
        assert len(other.bodies) == asked + 1, "asked again in vain"
    there.go_on.set()
    assert without_creation_times(await answer) == expected
    metrics = await counted(front, "antefix_moved_total", "", "stayed")
    assert metrics["antefix_moved_total", "exact", "moved"] == 0
    front.handle.may_pick.set()
    await until(lambda: front.handle.slots_taken == there.running == other.running == 0)
    other.tickets.limit = other.limit
    await is_served_again(front, stream=stream)


async def test_a_stream_without_a_token_restarts_on_another_engine(front: Front) -> None:
    """It is unknown whether an answer in one piece has a token, so it stays."""
    there, other = front.handle.engines
    await mark_leaving(front, other)
    for engine in front.handle.engines:
        engine.offers_resumable = False
    there.pauses_after = 0
    answers = [asyncio.create_task(whole(front, stream=stream)) for stream in (True, False)]
    await until(lambda: there.running == 2)
    await mark_staying(front, other)
    await mark_leaving(front, there)
    assert (await answers[0]).endswith(b"data: [DONE]\n\n")
    await until(lambda: there.running == 1)
    there.go_on.set()
    await answers[1]
    assert (there.finished, there.aborted, other.finished) == (1, 1, 1)
    await until(lambda: front.handle.slots_taken == other.running == 0)
    await until(lambda: not front.pool.scheduler.has_work)
    await is_served_again(front)


async def test_a_stream_that_has_its_first_token_just_then_stays(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, other = front.handle.engines
    await mark_leaving(front, other)
    there.pauses_after, there.offers_resumable = 0, False
    offers, post = front.pool.parts.moves, EngineRequests.post
    offers.after_s = None

    async def offered_late(*args: Any) -> Any:
        answer = await post(*args)
        offers.after_s = 0.0
        await offers._look()
        return answer

    monkeypatch.setattr(EngineRequests, "post", offered_late)
    answer = asyncio.create_task(whole(front))
    await until(lambda: there.running == 1)
    await mark_staying(front, other)
    await mark_leaving(front, there)
    there.pauses_after = 2
    there.go_on.set()
    there.go_on.clear()
    await until(lambda: there.made == 2)
    # while its answer is under way, what was placed at the other engine for it is given back
    await until(lambda: other.replica_id not in front.pool.scheduler._in_flight, within_s=20)
    there.go_on.set()
    assert (await answer).endswith(b"data: [DONE]\n\n")
    assert (there.finished, there.aborted, other.finished) == (1, 0, 0)
    await until(lambda: not front.pool.scheduler.has_work)


async def test_an_answer_that_cannot_be_resumed_stays(front: Front) -> None:
    for engine in front.handle.engines:
        engine.offers_resumable = False
    answer = await begin(front)
    there, other = answering_and_idle_engine(front)
    await mark_leaving(front, there)
    await asyncio.sleep(0.1)
    there.go_on.set()
    assert (await answer).endswith(b"data: [DONE]\n\n")
    assert not other.bodies


async def test_losing_the_old_engine_during_a_move_does_not_lose_the_answer(
    front: Front,
) -> None:
    expected = without_creation_times(await whole(front))
    answer = await begin(front)
    there, other = answering_and_idle_engine(front)
    other.pauses_after = 0
    await mark_leaving(front, there)
    await until(lambda: other.running == 1)
    there.break_off()
    other.go_on.set()
    assert without_creation_times(await answer) == expected
    metrics = await counted(front, "antefix_moved_total", "exact", "moved")
    assert metrics["antefix_resumed_total", "exact", "resumed"] == 0


async def test_a_client_that_leaves_during_a_move_frees_both_engines(front: Front) -> None:
    for engine in front.handle.engines:
        engine.pauses_after = 2
    answer = await ask(front).__aenter__()
    there, other = answering_and_idle_engine(front)
    other.pauses_after = 0
    await mark_leaving(front, there)
    await until(lambda: other.running == 1)
    answer.close()
    await until(lambda: there.running == other.running == front.handle.slots_taken == 0)
    await until(lambda: not front.pool.scheduler.has_work)


async def test_the_loss_of_a_leaving_engine_is_not_attributed_to_its_requests(front: Front) -> None:
    """The drain time is over: the answer is resumed, and it may be once more."""
    expected = without_creation_times(await whole(front))
    front.pool.parts.moves.after_s = None
    answer = await begin(front)
    there, other = answering_and_idle_engine(front)
    await mark_leaving(front, there)
    other.pauses_after, other.dies_after = None, 4
    there.break_off()
    await until(lambda: other.made == 2)
    there.leaving, there.pauses_after = False, None
    assert without_creation_times(await answer) == expected
    await counted(front, "antefix_resumed_total", "exact", "resumed")
    await is_served_again(front)


async def test_answers_stay_for_the_current_move_after_s_of_the_fleet_file(front: Front) -> None:
    fleet = front.gateway.parts.in_force.fleet.model_dump(mode="json")

    async def may_stay(seconds: float | None) -> None:
        fleet["gateway"]["move_after_s"] = seconds
        await front.gateway.reconfigure(settings_of(fleet))

    await may_stay(LONG_S)
    answer = await begin(front)
    there, other = answering_and_idle_engine(front)
    other.pauses_after = None
    await mark_leaving(front, there)
    await may_stay(None)
    await asyncio.sleep(0.1)
    assert not other.bodies
    await may_stay(0.0)
    assert (await answer).endswith(b"data: [DONE]\n\n")
    assert len(other.resumed_with) == 1


async def test_new_requests_avoid_leaving_engines_and_never_reach_closed_ones(
    front: Front,
) -> None:
    first, second = front.handle.engines
    await mark_leaving(front, first)
    for _ in range(4):
        await whole(front)
    assert not first.bodies
    await mark_leaving(front, second)
    await until(lambda: len(front.pool.scheduler.board.loads()) == 2)
    second.closed = True
    board = front.pool.scheduler.board
    await until(lambda: list(board.loads()) == ["r1"])
    await whole(front)
    assert len(first.bodies) == 1
