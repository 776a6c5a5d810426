"""The place that a request has at a replica, in it or through Ray Serve, over real HTTP."""

import asyncio
from typing import Any

import pytest
from ray.serve.exceptions import BackPressureError, RayServeException

from autoscaling.admission.admission import MAX_RETRY_AFTER_S
from deployments.gateway.attempt import transport
from tests.contract import events_of
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front
from tests.router.loads import changed
from tests.waiting import until


async def test_a_full_replica_serves_the_request_once_it_has_the_slot(
    front: Front, first: FakeEngine
) -> None:
    front.handle.engines = [first]
    first.limit = first.tickets.limit = 1
    first.pauses_after = 1
    front.sees(first)
    running = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: first.running == 1)
    front.sees(first)
    waiting = asyncio.ensure_future(front.post().__aenter__())
    await asyncio.sleep(0.2)
    assert len(first.bodies) == 1
    first.go_on.set()
    assert [(await running).status, (await waiting).status] == [200, 200]
    assert first.finished == 2


@pytest.mark.parametrize("best_is_slow", [True, False])
async def test_one_replica_answers_when_serve_picks_another_than_the_best_ranked(
    front: Front, first: FakeEngine, second: FakeEngine, best_is_slow: bool
) -> None:
    front.handle.must_pick = second
    if best_is_slow:
        first.pauses_after = 0
    else:
        front.handle.may_pick.clear()
    request = asyncio.ensure_future(front.post().__aenter__())
    if best_is_slow:
        await until(lambda: first.running == 1)
        front.sees(second)  # the first shows no signs of life any more
    answer = await request
    assert answer.status == 200
    assert answer.headers["x-antefix-replica"] == ("r2" if best_is_slow else "r1")
    assert first.finished + second.finished == 1
    await until(lambda: first.running + second.running + front.handle.slots_taken == 0)


async def test_every_slot_is_released_after_many_requests(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    async def one() -> int:
        front.sees(first, second)
        async with front.post(stream=True) as answer:
            assert (await events_of(answer))[-1] == "[DONE]"
            return int(answer.status)

    assert set(await asyncio.gather(*(one() for _ in range(40)))) == {200}
    await until(lambda: front.handle.slots_taken == 0)
    assert first.finished + second.finished == 40


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (BackPressureError(num_queued_requests=1, max_queued_requests=1), 429, "queue_full"),
        (RayServeException("gone"), 503, "no_replica"),
    ],
)
async def test_a_rejection_by_ray_serve_returns_a_retry_after(
    front: Front, refusal: Exception, status: int, code: str
) -> None:
    front.sees()
    front.handle.refuses_with = refusal
    async with front.post() as answer:
        assert answer.status == status
        assert int(answer.headers["retry-after"]) >= 1
        assert (await answer.json())["error"]["code"] == code


async def test_a_request_to_a_replica_with_room_needs_no_reservation_from_ray_serve(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    for stream in (True, False):
        front.sees(first, second)
        async with front.post(stream=stream) as answer:
            assert (answer.status, answer.headers["x-antefix-replica"]) == (200, "r1")
            await answer.read()
    assert not front.handle.picked


@pytest.mark.parametrize("why", ["old", "off the board"])
async def test_ray_serve_is_asked_first_where_the_best_replica_may_not_report_to_it(
    front: Front, first: FakeEngine, second: FakeEngine, why: str
) -> None:
    """A replica of another release would admit it, and Ray Serve would not learn of it."""
    first.tells_serve = why != "old"
    front.sees(first, second)
    if why == "off the board":
        front.goes_blind()
    front.handle.must_pick = first
    front.handle.may_pick.clear()
    request = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: front.handle.waiting)
    await asyncio.sleep(0.1)
    assert not first.bodies and not second.bodies
    front.handle.may_pick.set()
    assert (await request).headers["x-antefix-replica"] == "r1"
    assert front.handle.picked == ["r1"]
    await until(lambda: front.handle.slots_taken == 0)


async def test_no_request_overtakes_others_that_queue_for_a_place(
    front: Front, first: FakeEngine
) -> None:
    front.handle.engines = [first]
    first.limit = first.tickets.limit = 1
    first.pauses_after = 0
    front.sees(first)
    running = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: first.running == 1)
    front.handle.may_pick.clear()
    front.sees(first)
    waits = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: front.handle.waiting == 1)
    first.pauses_after = None
    first.go_on.set()
    await (await running).read()
    await until(lambda: first.tickets.running == 0)
    front.sees(first)
    late = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: front.handle.waiting == 2)
    assert len(first.bodies) == 1
    front.handle.may_pick.set()
    assert [(await waits).status, (await late).status] == [200, 200]
    await until(lambda: front.handle.slots_taken == front.handle.waiting == 0)


async def test_a_replica_that_is_full_despite_a_reservation_is_retried(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    """Another request arrived in the moment before Ray Serve heard of it."""
    first.tickets.limit = second.tickets.limit = 0
    request = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: len(front.handle.picked) > 2)
    assert not first.bodies and not second.bodies
    first.tickets.limit = 1
    assert (await request).headers["x-antefix-replica"] == "r1"
    assert len(first.bodies) == 1
    await until(lambda: front.handle.slots_taken == len(second.tickets) == 0)


async def test_a_replica_that_leaves_the_board_briefly_keeps_its_prefill(
    front: Front, first: FakeEngine, second: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LOOK_PERIOD_S", 0.02)
    front.handle.must_pick = second
    front.handle.may_pick.clear()
    first.pauses_after = 0
    request = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: first.running == 1)
    front.sees(second)
    await until(lambda: front.handle.waiting == 1)
    front.sees(first, second)
    front.handle.may_pick.set()
    await until(lambda: front.handle.slots_taken == 1)
    await asyncio.sleep(10 * transport.LOOK_PERIOD_S)
    assert not request.done()
    first.go_on.set()
    assert (await request).headers["x-antefix-replica"] == "r1"
    assert not second.bodies
    await until(lambda: front.handle.slots_taken == 0)


async def test_another_replica_is_used_once_the_best_one_is_off_the_board(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    front.handle.must_pick = second
    first.pauses_after = 0
    request = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: first.running == 1)
    assert not front.handle.picked
    front.sees(second)
    assert (await request).headers["x-antefix-replica"] == "r2"
    await until(lambda: first.aborted == 1 and front.handle.slots_taken == 0)


async def test_a_full_queue_does_not_fail_a_request_that_its_replica_accepted(
    front: Front, first: FakeEngine
) -> None:
    front.handle.refuses_with = BackPressureError(num_queued_requests=1, max_queued_requests=1)
    first.pauses_after = 0
    request = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: first.running == 1)
    await asyncio.sleep(0.1)
    first.go_on.set()
    answer = await request
    assert (answer.status, answer.headers["x-antefix-replica"]) == (200, "r1")


async def test_a_full_queue_is_a_429_if_the_replica_has_no_room(
    front: Front, first: FakeEngine
) -> None:
    front.handle.refuses_with = BackPressureError(num_queued_requests=1, max_queued_requests=1)
    first.tickets.limit = 0
    async with front.post() as answer:
        assert answer.status == 429
        assert (await answer.json())["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [
        ({"running": 2, "decode_s": 30.5}, 31),  # 2 requests: one queued, and the rejected one
        ({"running": 2, "decode_s": 1e9}, MAX_RETRY_AFTER_S),
        ({"running": 2, "decode_s": 0.01}, 1),
        ({"running": 2, "decode_s": 30.5, "prefill_learned": False}, 1),
    ],
)
async def test_a_full_queue_has_a_retry_after_that_is_predicted_from_the_engines_pace(
    front: Front, first: FakeEngine, pace: dict[str, Any], seconds: int
) -> None:
    front.handle.engines = [first]
    first.limit = first.tickets.limit = 0
    front.pool.scheduler.board.update([changed(first.load(), **pace)])
    queued = asyncio.ensure_future(front.post().__aenter__())
    await until(lambda: front.handle.waiting == 1)
    front.handle.refuses_with = BackPressureError(num_queued_requests=1, max_queued_requests=1)
    async with front.post() as answer:
        message = (await answer.json())["error"]["message"]
        assert answer.headers["retry-after"] == str(seconds)
        assert message.endswith(f"Try again in {seconds} s.")
    first.limit = first.tickets.limit = 1
    assert (await queued).status == 200


async def test_a_request_goes_to_a_replica_with_room_instead_of_a_full_one(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    front.handle.must_pick = second
    first.tickets.limit = 0
    async with front.post() as answer:
        assert answer.headers["x-antefix-replica"] == "r2"
    assert not first.bodies
