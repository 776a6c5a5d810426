"""Gateways and Redis die, by a clock of the test: no tenant overspends, and little is left
unused."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.budgets.budget_limits import TenantBudget
from router.budgets.budget_scripts import WINDOW
from router.redis.redis_client import AsyncRedis
from tests.router.budget_world import World
from tests.waiting import until

LIMIT = 100
TOKENS = TenantBudget("red", tokens=LIMIT)
GATEWAYS = 8
# As much as there is room for is used at once, and has left the window 62 s later.
PIECE_S = 62

Build = Callable[[Path | None], World]


@asynccontextmanager
async def world_of(
    redis: AsyncRedis, folder: Path | None, count: int, patch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    world = World(redis, folder, count, patch)
    try:
        await world.start_all()
        yield world
    finally:
        await world.end()


async def all_there_is(world: World, dice: random.Random, held: bool = False) -> None:
    """Of five tokens at most each, until none is granted."""
    while True:
        places = dice.sample(sorted(world.ledgers), len(world.ledgers))
        let_in = [await world.ask(p, TOKENS, 1, 1) for p in places]
        for place in places:
            most = dice.randint(1, 5)
            let_in.append(await world.ask(place, TOKENS, most, dice.randint(1, most), held))
        if not any(let_in):
            return


async def live(world: World, dice: random.Random, seconds: int, *, dies_alone: bool) -> None:
    """A gateway is killed each 20 s or so and is back 2 s later, with `dies_alone` also while it
    does not reach Redis. Redis is killed each 50 s or so, for long or not. Now and then one gateway
    is cut off for a while."""
    back: dict[int, int] = {}
    gateway_dies, redis_dies, redis_back = dice.randint(10, 30), dice.randint(20, 60), -1
    mended = -1
    for second in range(seconds):
        if second == gateway_dies:
            gateway_dies += dice.randint(10, 30)
            place = dice.choice(sorted(world.ledgers))
            if dies_alone or world.reaches(place):
                await world.kill(place)
                back[place] = second + 2
        for place in [place for place, at in back.items() if at == second]:
            del back[place]
            world.start(place)
        if second == redis_dies:
            await world.kill_redis()
            redis_back = second + dice.choice([1, 3, 40])
        if second == redis_back:
            world.away = False
            redis_dies = second + dice.randint(30, 70)
        if not world.cut and not world.away and dice.random() < 0.03:
            place = dice.choice(sorted(world.ledgers))
            world.cut.add(place)
            mended = second + dice.choice([2, 7, 30, 80])
        if second == mended:
            world.cut.clear()
        await world.pass_s(1)
        world.settle()
        await all_there_is(world, dice, held=True)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("dies_alone", [False, True])
async def test_no_tenant_overspends_while_processes_die_at_random(
    redis: AsyncRedis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_alone: bool,
    seed: int,
) -> None:
    """Except by one window's share of each gateway that dies without Redis."""
    dice = random.Random(seed)
    async with world_of(redis, tmp_path, GATEWAYS, monkeypatch) as world:
        await live(world, dice, 150, dies_alone=dies_alone)
        assert 0 < world.most() <= LIMIT * (2 if dies_alone else 1)


async def test_the_successor_of_a_gateway_that_dies_without_redis_gets_its_share(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = LIMIT // 2
    async with world_of(redis, tmp_path, 2, monkeypatch) as world:
        world.away = True
        await world.beat()
        await world.pass_s(2 * WINDOW)
        assert await world.ask(0, TOKENS, share, share)
        await world.kill(0)
        world.start(0)
        await world.beat()
        assert await world.ask(0, TOKENS, share, share)
        assert not await world.ask(0, TOKENS, 1, 1)
        assert world.most() == 2 * share


async def test_nothing_is_granted_for_a_window_after_all_gateways_and_redis_were_killed(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process knows what was granted in it."""
    dice = random.Random(3)
    async with world_of(redis, tmp_path, GATEWAYS, monkeypatch) as world:
        since = world.now()
        for _ in range(3):
            await all_there_is(world, dice)
            for place in range(GATEWAYS):
                await world.kill(place)
                world.start(place)
            await world.kill_redis()
            await world.pass_s(1)
            world.away = False
            await world.pass_s(1)
            assert not await world.ask(0, TOKENS, 1, 1)
            await world.pass_s(PIECE_S)
        assert world.most() <= LIMIT
        assert world.used(since) >= 0.95 * 3 * LIMIT


@pytest.mark.parametrize("hours", [-1, 1])
async def test_grants_resume_within_seconds_after_the_clock_of_redis_was_changed(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Set back, nothing left the window until the clock was where it had been: no tenant with a
    limit was admitted for that hour."""
    dice = random.Random(4)
    async with world_of(redis, None, 2, monkeypatch) as world:
        await all_there_is(world, dice)
        world.redis_ahead_s += 3600 * hours
        await world.pass_s(PIECE_S + 1)
        since = world.now()
        for _ in range(2):
            await all_there_is(world, dice)
            await world.pass_s(PIECE_S)
        assert world.used(since) >= 0.95 * 2 * LIMIT
        assert world.most() <= LIMIT


async def test_grants_before_the_clock_was_set_back_still_count(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(5)
    async with world_of(redis, None, 2, monkeypatch) as world:
        await all_there_is(world, dice)
        world.redis_ahead_s -= 3600
        await world.pass_s(2)
        await all_there_is(world, dice)
        assert world.most() <= LIMIT


async def test_gateways_continue_at_their_previous_rates_without_redis(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst has to wait, since others may have got what was left."""
    budget = TenantBudget("red", requests=480)
    async with world_of(redis, tmp_path, 4, monkeypatch) as world:

        async def each_asks() -> int:
            return sum([await world.ask(place, budget, 0, 1) for place in range(4)])

        for _ in range(70):
            await world.pass_s(1)
            assert await each_asks() == 4
        await world.kill_redis()
        let_in = []
        for _ in range(60):
            await world.pass_s(1)
            let_in.append(await each_asks())
        # what they had when Redis began to withhold their shares, 5 s later
        assert let_in[10:] == [4] * 50
        assert not all([await world.ask(0, budget, 0, 1) for _ in range(60)])
        await world.pass_s(20)  # a window after Redis began to withhold it, each has its share
        before = len(world.grants)
        for _ in range(120):
            await each_asks()
        assert len(world.grants) - before > 100
        assert world.most() <= 480


async def test_nothing_is_granted_by_share_while_redis_receives_the_report(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count neither for Redis, which has received it already, nor as withheld."""
    async with world_of(redis, tmp_path, 1, monkeypatch) as world:
        for _ in range(70):
            await world.pass_s(1)
            assert await world.ask(0, TOKENS, 1, 1)
        world.cut.add(0)
        await world.pass_s(20)
        assert await world.ask(0, TOKENS, 1, 1)
        world.answers.clear()
        world.cut.clear()
        world.ledgers[0]._wake.set()
        await until(lambda: world.ledgers[0]._telling)
        assert not await world.ask(0, TOKENS, 1, 1)
        world.answers.set()
        await world.beat()
        assert await world.ask(0, TOKENS, 1, 1)


async def test_a_gateway_that_was_idle_when_redis_failed_waits_for_a_window(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_of(redis, tmp_path, 2, monkeypatch) as world:
        world.cut.add(0)
        await world.beat()
        assert not await world.ask(0, TOKENS, 5, 5)
        # the others reach it still
        while await world.ask(1, TOKENS, 5, 5):
            pass
        assert world.used(0) == LIMIT
        await world.pass_s(PIECE_S + 10)
        while await world.ask(0, TOKENS, 5, 5) or await world.ask(1, TOKENS, 5, 5):
            pass
        assert world.used(0) == 2 * LIMIT
        assert world.most() == LIMIT


async def test_the_share_of_a_silent_gateway_is_withheld(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_of(redis, tmp_path, 2, monkeypatch) as world:
        await world.kill(0)
        await world.pass_s(4)
        assert await world.ask(1, TOKENS, 60, 0)  # given back at once
        await world.pass_s(2)
        assert not await world.ask(1, TOKENS, 51, 51)
        assert await world.ask(1, TOKENS, 50, 50)


async def test_after_redis_lost_its_data_the_window_of_a_dead_gateway_must_pass(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_of(redis, None, 2, monkeypatch) as world:
        assert await world.ask(0, TOKENS, 60, 60)
        await world.kill(0)
        world.start(0)
        await world.kill_redis()
        await world.pass_s(1)
        world.away = False
        for _ in range(50):
            await world.pass_s(1)
            assert not await world.ask(1, TOKENS, 50, 50)
        await world.pass_s(PIECE_S - 48)
        assert await world.ask(1, TOKENS, 40, 40)


async def test_grants_of_a_gateway_that_left_still_count_after_redis_lost_its_data(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took leave of a Redis that then forgot: no other gateway knows."""
    async with world_of(redis, tmp_path, 2, monkeypatch) as world:
        assert await world.ask(0, TOKENS, 60, 60)
        await world.ledgers[0].leave()
        await world.kill(0)
        await world.pass_s(1)
        world.ledgers[1].gateways = 1
        await world.kill_redis()
        await world.pass_s(1)
        world.away = False
        await world.pass_s(1)
        assert not await world.ask(1, TOKENS, 50, 50)


async def test_without_redis_a_debt_counts_in_the_share_and_later_in_redis(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_of(redis, None, 2, monkeypatch) as world:
        world.away = True
        await world.beat()
        await world.pass_s(2 * WINDOW)
        share = LIMIT // 2
        assert await world.ask(0, TOKENS, 1, share)
        assert not await world.ask(0, TOKENS, 1, 1)
        world.away = False
        await world.beat()
        assert await world.ask(1, TOKENS, LIMIT - share, LIMIT - share)
        assert not await world.ask(1, TOKENS, 1, 1)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_tenant_exceeds_its_limit_by_at_most_the_excess_of_one_request(
    redis: AsyncRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """One at a time, while gateways and Redis are killed."""
    dice, largest = random.Random(seed), 7
    async with world_of(redis, tmp_path, GATEWAYS, monkeypatch) as world:
        for second in range(100):
            place = dice.choice(sorted(world.ledgers))
            await world.ask(place, TOKENS, 1, dice.randint(1, largest))
            if second % 31 == 30:
                await world.kill(place)
                world.start(place)
                await world.kill_redis()
                await world.pass_s(1)
                world.away = False
            await world.pass_s(1)
        assert LIMIT / 2 < world.most() < LIMIT + largest
