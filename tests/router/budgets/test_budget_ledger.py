"""Budgets in a real Redis: nothing beyond a limit, for any lost process and any lost data."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.budgets import budget_ledger
from router.budgets.budget_ledger import BudgetLedger
from router.budgets.budget_limits import Granted, NotGranted, TenantBudget
from router.budgets.budget_scripts import BEAT, RESERVE, SETTLE, WINDOW
from router.redis import redis_keys
from router.redis.redis_client import AsyncRedis
from tests.router.budget_redis import write_initial_state
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess
from tests.waiting import cancelled, until

FLEET = "fleet"
KEY = redis_keys.key(FLEET, "budgets")
TOKENS = [TenantBudget("red", tokens=100)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy cores are no Redis outage."""
    monkeypatch.setattr(budget_ledger, "CALL_S", 20.0)


@asynccontextmanager
async def gateways(
    redis: AsyncRedis, count: int, bucket_s: float = 1.0, opened: bool = True
) -> AsyncIterator[list[BudgetLedger]]:
    """That Redis has heard of."""
    if opened:
        await write_initial_state(redis, FLEET)
    ledgers = [BudgetLedger(redis, FLEET, count, bucket_s, f"g{i}") for i in range(count)]
    tasks = [asyncio.create_task(ledger.run()) for ledger in ledgers]
    try:
        await until(lambda: not any(ledger.by_share for ledger in ledgers))
        yield ledgers
    finally:
        for task in tasks:
            await cancelled(task)


async def all_at_once(
    ledgers: Sequence[BudgetLedger], budgets: Sequence[TenantBudget], tokens: int, times: int
) -> list[Granted | NotGranted]:
    asked = (ledgers[i % len(ledgers)].reserve(budgets, tokens) for i in range(times))
    return await asyncio.gather(*asked)


def granted(answers: Sequence[Granted | NotGranted]) -> list[Granted]:
    return [answer for answer in answers if isinstance(answer, Granted)]


async def granted_in_time(
    ledger: BudgetLedger, budgets: Sequence[TenantBudget], tokens: int
) -> None:
    async with asyncio.timeout(60):
        while isinstance(await ledger.reserve(budgets, tokens), NotGranted):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_thousand_concurrent_requests_get_no_more_than_the_limit(redis: AsyncRedis) -> None:
    async with gateways(redis, 8) as ledgers:
        answers = await all_at_once(ledgers, TOKENS, 7, 1000)
    refused = [answer for answer in answers if isinstance(answer, NotGranted)]
    kinds = {answer.kind for answer in refused}
    assert len(granted(answers)) <= 14 and len(refused) == 1000 - len(granted(answers))
    if kinds == {"tokens"}:  # otherwise the cores were so busy that Redis was thought unavailable
        assert len(granted(answers)) == 14
    assert all(0 < answer.retry_after_s <= WINDOW for answer in refused)


async def test_all_budgets_of_a_request_are_charged_or_none(redis: AsyncRedis) -> None:
    tight, wide = TenantBudget("red/a", requests=1), TenantBudget("red", tokens=100)
    async with gateways(redis, 1) as (ledger,):
        assert isinstance(await ledger.reserve([wide, tight], 10), Granted)
        refused = await ledger.reserve([wide, tight], 10)
        assert isinstance(refused, NotGranted) and refused.budget == tight
        last = await ledger.reserve([wide], 90)
        assert isinstance(last, Granted) and last.left[0].tokens == 0


async def test_unused_tokens_are_released(redis: AsyncRedis) -> None:
    async with gateways(redis, 2) as (one, other):
        first = await one.reserve(TOKENS, 100)
        assert isinstance(first, Granted)
        one.settle(first, 30)
        await granted_in_time(other, TOKENS, 70)
        assert isinstance(await other.reserve(TOKENS, 1), NotGranted)


async def counted(redis: AsyncRedis, scope: str, tokens: int) -> None:
    """Return once Redis counts this many tokens for the scope."""
    async with asyncio.timeout(60):
        while await redis.hget(f"{KEY}:{scope}", "t") != str(tokens):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_tokens_used_beyond_a_reservation_are_owed(redis: AsyncRedis) -> None:
    async with gateways(redis, 2) as (one, other):
        first = await one.reserve(TOKENS, 10)
        assert isinstance(first, Granted)
        one.settle(first, 70)
        await counted(redis, "red", 70)
        assert isinstance(await other.reserve(TOKENS, 31), NotGranted)
        assert isinstance(await other.reserve(TOKENS, 30), Granted)


async def test_a_debt_may_exceed_the_limit(redis: AsyncRedis) -> None:
    async with gateways(redis, 1) as (ledger,):
        first = await ledger.reserve(TOKENS, 10)
        assert isinstance(first, Granted)
        ledger.settle(first, 1000)
        await counted(redis, "red", 1000)
        refused = await ledger.reserve(TOKENS, 1)
        assert isinstance(refused, NotGranted)
        assert refused.kind == "tokens" and refused.left[0].tokens == 0
        assert 0 < refused.retry_after_s <= WINDOW


async def test_a_scope_without_a_token_limit_has_no_debt(redis: AsyncRedis) -> None:
    of_model, of_all = TenantBudget("red/a", requests=9), TenantBudget("red", tokens=100)
    async with gateways(redis, 1) as (ledger,):
        first = await ledger.reserve([of_all, of_model], 10)
        assert isinstance(first, Granted)
        ledger.settle(first, 60)
        await counted(redis, "red", 60)
        await counted(redis, "red/a", 10)


async def test_concurrent_requests_never_exceed_the_limit(redis: AsyncRedis) -> None:
    budgets = [TenantBudget("red", concurrent=3)]
    async with gateways(redis, 2) as ledgers:
        answers = await all_at_once(ledgers, budgets, 5, 20)
        running = granted(answers)
        assert len(running) == 3
        for ledger in ledgers:
            ledger.settle(running[0], 5)
        await granted_in_time(ledgers[1], budgets, 5)


async def test_requests_of_a_dead_gateway_no_longer_count_as_running(redis: AsyncRedis) -> None:
    budgets = [TenantBudget("red", concurrent=1)]
    async with gateways(redis, 1, bucket_s=0.02) as (dies,):
        assert isinstance(await dies.reserve(budgets, 1), Granted)
    async with gateways(redis, 1, bucket_s=0.02, opened=False) as (lives,):
        await granted_in_time(lives, budgets, 1)


async def test_counts_of_a_dead_gateway_expire(redis: AsyncRedis) -> None:
    """No other gateway knows the tenant."""
    async with gateways(redis, 1, bucket_s=0.05) as (ledger,):
        await granted_in_time(ledger, TOKENS, 10)
    assert await redis.exists(f"{KEY}:red")
    async with gateways(redis, 1, bucket_s=0.05, opened=False):
        async with asyncio.timeout(60):
            while await redis.exists(f"{KEY}:red", f"{KEY}:scopes"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("forgotten", ["all", "the gateways"])
async def test_a_redis_that_lost_its_data_is_restored_before_any_grant(
    redis: AsyncRedis, forgotten: str
) -> None:
    async with gateways(redis, 2) as ledgers:
        answers = await all_at_once(ledgers, TOKENS, 10, 6)
        assert len(granted(answers)) == 6
        for ledger in ledgers:  # as if they had run for long: they speak for the last window
            ledger._began -= 2 * WINDOW
        await (redis.flushall() if forgotten == "all" else redis.delete(KEY))
        answers = []
        async with asyncio.timeout(60):
            while len(granted(answers)) < 4:
                answers += await all_at_once(ledgers, TOKENS, 10, 20)
        assert len(granted(answers)) == 4


async def test_a_gateway_younger_than_a_window_does_not_know_earlier_grants(
    redis: AsyncRedis,
) -> None:
    async with gateways(redis, 2, opened=False) as ledgers:
        (answer,) = await all_at_once(ledgers, TOKENS, 10, 1)
        assert isinstance(answer, NotGranted) and answer.kind == "unknown"
        assert 0 < answer.retry_after_s <= WINDOW


async def test_without_redis_each_gateway_grants_its_share_after_one_window(
    server: RedisProcess, redis: AsyncRedis
) -> None:
    async with gateways(redis, 4, bucket_s=0.02) as ledgers:
        await until(lambda: {ledger._place.beats.share for ledger in ledgers} == {0.25})
        grants = granted(await all_at_once(ledgers, TOKENS, 1, 300))
        with control(server) as client:
            client.config_set("maxclients", 1)
            client.client_kill_filter(_type="normal", skipme=True)
            async with asyncio.timeout(60):
                while sum(one.by_share for one in grants) < 100:
                    grants += granted(await all_at_once(ledgers, TOKENS, 1, 300))
            client.config_set("maxclients", 10000)
        await until(lambda: not any(ledger.by_share for ledger in ledgers))
        for _ in range(20):
            grants += granted(await all_at_once(ledgers, TOKENS, 1, 300))
            await asyncio.sleep(0.05)
        ahead = ledgers[0]._offset / 0.02  # of Redis' buckets
    when = [one.local_bucket + ahead if one.by_share else one.bucket for one in grants]
    for last in set(when):
        assert sum(0 <= last - at < 60 for at in when) <= 100
    assert any(one.by_share for one in grants) and not all(one.by_share for one in grants)


# --- the window, by a clock of our own -------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["wait", "reserve", "reserve", "reserve", "settle", "owe"]),
        st.integers(0, 50),
        st.floats(0, 70, allow_nan=False, width=32),
    ),
    max_size=40,
)


def at_our_time(script: str) -> str:
    changed = script.replace("redis.call('TIME')", "{redis.call('GET', 'our:time'), 0}")
    assert changed != script
    return changed


@given(steps)
def test_the_window_grants_exactly_what_a_list_of_all_reservations_allows(
    shared: RedisProcess, given_steps: list[tuple[str, int, float]]
) -> None:
    """Granted exactly where it fits; and the seconds until there is room are true."""
    limit, now = 100, 1_000_000.5
    held: list[tuple[int, int]] = []  # bucket, tokens
    owed: list[tuple[int, int]] = []
    common: list[Any] = ["9e18", "gen", "me", "process", 1]
    with control(shared) as client:
        client.flushall()

        def run(script: str, *arguments: Any) -> Any:
            client.set("our:time", now)
            return client.eval(at_our_time(script), 1, KEY, *common, *arguments)

        def reserve(tokens: int) -> Any:
            return run(RESERVE, 1, tokens, "lease", "red", -1, limit, -1)

        assert run(BEAT, 1, 1, "0", '{"all":true,"spent":[],"leases":[],"idle":[]}')[0] == b"ok"
        for step, number, seconds in given_steps:
            if step == "wait":
                now += seconds
                # it is still there
                run(BEAT, 1, 1, "0", '{"all":true,"spent":[],"leases":[],"idle":[]}')
                continue
            if step == "settle" and held:
                place = number % len(held)
                bucket, tokens = held[place]
                back = min(tokens, number)
                run(SETTLE, "red", bucket, 0, back, "lease")
                held[place] = (bucket, tokens - back)
                continue
            if step == "owe":
                run(SETTLE, "red", "now", 0, -number, "")
                owed.append((int(now), number))
                continue
            counted = sum(tokens for at, tokens in held + owed if at > int(now) - WINDOW)
            answer = reserve(number)
            if answer[0] == b"ok":
                assert counted + number <= limit
                assert answer[3] == limit - counted - number
                held.append((answer[1], number))
            else:
                assert answer[0] == b"no" and counted + number > limit
                wait_s = float(answer[3])
                before, now = now, now + wait_s - 0.002
                if wait_s > 0.002:
                    assert reserve(number)[0] == b"no"
                now = before + wait_s + 0.002
                again = reserve(number)
                assert again[0] == b"ok"
                held.append((again[1], number))
        for last, _ in held:
            assert sum(tokens for at, tokens in held if 0 <= last - at <= 60) <= limit


def test_a_script_call_after_its_deadline_changes_nothing(server: RedisProcess) -> None:
    with control(server) as client:
        client.flushall()
        late = client.eval(
            RESERVE, 1, KEY, "1", "gen", "me", "process", 1, 1, 1, "x", "red", 1, 1, 1
        )
        assert late == [b"late"] and client.keys("*") == []


def test_the_scripts_leave_no_key_that_redis_may_evict_while_it_counts(
    server: RedisProcess,
) -> None:
    with control(server) as client:
        client.flushall()
        client.set("our:time", 1000)
        told = '{"all":true,"spent":[["red",3,1,5,0,0]],"leases":[["red","x"]],"idle":[]}'
        common = ("9e18", "gen", "me", "p", 1)
        client.eval(at_our_time(BEAT), 1, KEY, *common, 1, 1, "0", told)
        client.eval(at_our_time(RESERVE), 1, KEY, *common, 1, 5, "x", "red", 1, 9, 1)
        client.delete("our:time")
        assert len(client.keys("*")) == 4
        kinds = Counter(client.ttl(name) for name in client.keys("*"))
        assert set(kinds) == {-1}


async def test_a_full_redis_is_not_taken_for_an_unavailable_one(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with gateways(redis, 1) as (ledger,):
        assert not ledger.redis_is_full
        with control(server) as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1")
            await until(lambda: ledger.by_share and ledger.redis_is_full)
            client.config_set("maxmemory", "0")
        await until(lambda: not ledger.by_share)
        assert not ledger.redis_is_full
