"""A mirror's copies are compared and counted, and clients hear nothing of them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments.fleet.applications import settings_of
from deployments.gateway.answer import mirrors
from deployments.gateway.answer.mirrors import Mirror
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import TENANT, Front, gateway_before
from tests.waiting import until

MODELS = {"assistant": {"pools": {"main": 1}, "mirror": {"pool": "small", "percent": 100}}}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0", limit=100)


@pytest.fixture
def candidate() -> FakeEngine:
    return FakeEngine("r1", model="candidate", limit=100)


@pytest.fixture
async def front(engine: FakeEngine, candidate: FakeEngine) -> AsyncIterator[Front]:
    async with gateway_before(engine, small=candidate, models=MODELS) as front:
        yield front


async def ask(front: Front, number: int = 0, **fields: Any) -> tuple[int, str]:
    """The answer's status, and the model that answered."""
    messages = [{"role": "user", "content": f"question {number}"}]
    async with front.post(**{"model": "assistant", "messages": messages, **fields}) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-antefix-model", "")


async def outcomes(front: Front, copies: int) -> dict[str, int]:
    """Of the copies, once there are N."""

    def counted() -> dict[str, int]:
        return {
            str(key[2]): int(value)
            for key, value in front.counted().items()
            if key[0] == "antefix_mirrored_requests_total" and value
        }

    await until(lambda: sum(counted().values()) >= copies)
    return counted()


@pytest.mark.parametrize("streams", [True, False])
async def test_a_copy_is_compared_with_its_original(
    front: Front, engine: FakeEngine, candidate: FakeEngine, streams: bool
) -> None:
    for number in range(5):
        assert await ask(front, number, stream=streams, max_tokens=7) == (200, MODEL)
    assert await outcomes(front, 5) == {"same": 5}
    sent = [json.loads(body) for body in candidate.bodies]
    assert {body["model"] for body in sent} == {"candidate"}
    originals = [json.loads(body) for body in engine.bodies]
    assert [body["messages"] for body in sent] == [body["messages"] for body in originals]
    metrics = await front.metrics()
    for of in ("ttft", "tpot", "tokens"):
        assert metrics["antefix_mirror_ratio_count", "assistant", of] == 5
    assert metrics["antefix_mirror_ratio_sum", "assistant", "tokens"] == 5


async def test_no_tenant_is_charged_for_a_copy_and_no_request_is_counted_twice(
    front: Front,
) -> None:
    for number in range(5):
        assert (await ask(front, number))[0] == 200
    await outcomes(front, 5)
    names = ("antefix_requests_total", "antefix_tenant_requests_total")

    def counted() -> dict[tuple[str, ...], float]:
        front.gateway.refresh_metrics({})
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in front.gateway.parts.families.registry.collect()
            for sample in family.samples
            if sample.name in names and sample.value
        }

    await until(lambda: sum(counted().values()) >= 10)
    assert counted() == {
        (names[0], "main", "interactive", "ok"): 5,
        (names[1], TENANT, "main", "ok"): 5,
    }


@pytest.mark.parametrize("percent", [0.0, 1.0, 25.0, 100.0])
def test_a_share_of_conversations_is_copied(percent: float) -> None:
    mirror = Mirror("small", percent / 100)
    names = [number.to_bytes(8, "big") + bytes(8) for number in range(10)]
    assert {mirror.has(name) for name in names} == {percent > 0}  # the lowest of all
    alone = Counter(mirror.has(None) for _ in range(10_000))
    assert abs(alone[True] / 100 - percent) < 2


async def test_a_conversation_is_copied_whole_or_not(front: Front, candidate: FakeEngine) -> None:
    front.gateway.parts.mirrors.by_route = {"assistant": Mirror("small", 0.5)}
    copied = set()
    for number in range(12):
        before = len(candidate.bodies)
        for turn in range(2):
            more = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "on"}]
            messages = [{"role": "user", "content": f"question {number}"}, *more * turn]
            assert (await ask(front, messages=messages))[0] == 200
            await until(lambda: not front.gateway.parts.mirrors.copies)
        copied.add(len(candidate.bodies) - before)
    assert copied == {0, 2}


async def test_a_hung_mirror_delays_no_request_and_holds_few_copies(
    front: Front, candidate: FakeEngine
) -> None:
    front.gateway.parts.mirrors.most_copies = 3
    front.gateway.parts.mirrors.least_late_s = 60  # however slow this machine is
    candidate.pauses_after = 0
    async with asyncio.timeout(30):
        for number in range(10):
            assert await ask(front, number) == (200, MODEL)
    assert await outcomes(front, 7) == {"dropped": 7}
    assert front.gateway.parts.mirrors.copies == 3
    candidate.go_on.set()
    assert await outcomes(front, 10) == {"dropped": 7, "same": 3}


async def test_an_error_of_the_mirror_reaches_no_client(
    front: Front, candidate: FakeEngine
) -> None:
    candidate.dies_after = 2
    assert await ask(front, stream=True) == (200, MODEL)
    assert await outcomes(front, 1) == {"failed": 1}


async def test_a_mirrored_copy_that_takes_much_longer_is_ended(
    front: Front, candidate: FakeEngine
) -> None:
    candidate.pauses_after = 1
    assert await ask(front) == (200, MODEL)
    assert await outcomes(front, 1) == {"late": 1}
    await until(lambda: candidate.aborted)
    candidate.go_on.set()


async def test_a_request_that_the_mirror_refuses_is_counted(
    front: Front, candidate: FakeEngine
) -> None:
    candidate.model = "renamed since"
    assert await ask(front) == (200, MODEL)
    assert await outcomes(front, 1) == {"invalid": 1}


async def test_a_copy_with_another_finish_reason_is_counted(
    front: Front, candidate: FakeEngine
) -> None:
    candidate.finish_reason = "stop"
    assert await ask(front) == (200, MODEL)
    assert await outcomes(front, 1) == {"other_reason": 1}


async def test_a_copy_ends_when_its_originals_client_leaves(
    front: Front, engine: FakeEngine, candidate: FakeEngine
) -> None:
    engine.pauses_after = candidate.pauses_after = 1
    messages = [{"role": "user", "content": "hello"}]
    async with front.post(model="assistant", messages=messages, stream=True) as answer:
        await answer.content.readany()
        await until(lambda: candidate.running)
    assert await outcomes(front, 1) == {"uncompared": 1}
    await until(lambda: candidate.aborted)
    engine.go_on.set()
    candidate.go_on.set()


async def test_a_mirrored_copy_that_would_wait_is_dropped(
    front: Front, candidate: FakeEngine
) -> None:
    front.sees_queues({candidate: 1_000_000}, pool="small")
    assert await ask(front) == (200, MODEL)
    assert await outcomes(front, 1) == {"dropped": 1}
    front.sees(pool="small")  # no replica
    assert await ask(front) == (200, MODEL)
    assert await outcomes(front, 2) == {"dropped": 2}
    assert not candidate.bodies


async def test_a_request_that_was_running_when_the_mirrors_engine_died_is_not_copied_again(
    front: Front, candidate: FakeEngine
) -> None:
    candidate.dies_after = 2
    assert await ask(front, stream=True) == (200, MODEL)
    assert await outcomes(front, 1) == {"failed": 1}
    candidate.dies_after = None
    assert await ask(front, stream=True) == (200, MODEL)
    assert await outcomes(front, 2) == {"failed": 1, "dropped": 1}
    assert await ask(front, 1, stream=True) == (200, MODEL)  # another
    assert await outcomes(front, 3) == {"failed": 1, "dropped": 1, "same": 1}


async def test_a_client_that_reads_slowly_holds_no_copy(
    front: Front, engine: FakeEngine, candidate: FakeEngine
) -> None:
    engine.pauses_after = 1
    messages = [{"role": "user", "content": "hello"}]
    async with front.post(model="assistant", messages=messages, stream=True) as answer:
        await answer.content.readany()
        await until(lambda: candidate.bodies and not front.gateway.parts.mirrors.copies)
        assert not await outcomes(front, 0)  # it waits to be compared
        engine.go_on.set()
        await answer.read()
    assert await outcomes(front, 1) == {"same": 1}


async def test_a_large_request_is_not_copied(front: Front, candidate: FakeEngine) -> None:
    large = [{"role": "user", "content": " " * mirrors.MOST_BODY_BYTES}]
    assert (await ask(front, messages=large))[0] in (200, 400)
    assert not candidate.bodies


async def test_a_mirror_is_removed_with_the_settings(front: Front, candidate: FakeEngine) -> None:
    fleet = front.gateway.parts.in_force.fleet.model_dump(mode="json")
    fleet["models"]["assistant"]["mirror"] = None
    await front.gateway.reconfigure(settings_of(fleet))
    assert not front.gateway.parts.in_force.refused
    assert await ask(front) == (200, MODEL)
    assert not candidate.bodies and not front.gateway.parts.mirrors.copies
