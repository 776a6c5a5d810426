"""What is done to a fleet in each drill: it returns when that is over and the process is back.

Raises Problem where this machine does not let it be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import statistics
from collections.abc import Awaitable, Callable

import psutil

from benchmarks.drills import surroundings
from benchmarks.drills.cut_off import cut_off
from benchmarks.drills.verdict import Injury
from benchmarks.stand.drilled_fleet import DrilledFleet, engine_core_of, eventually
from router import active as active_replicas
from router.redis_client import connect

FROZEN_S = 15.0
SLOW_S = 10.0
CUT_OFF_S = 10.0
FULL_S = 15.0
SET_BY_S, AFTER_SET_S = 3600, 10.0
# Before one of two takes all traffic, and before the other is promoted.
PROMOTED_AFTER_S = 3.0
LOOK_EVERY_S = 0.2
# What engines read when they start, and answers do not depend on.
UPDATED = {"max_num_seqs": 9}
POOL, OVERFLOW = "engine", "other"

Scenario = Callable[[DrilledFleet], Awaitable[Injury]]


def now() -> float:
    return asyncio.get_running_loop().time()


async def replaced(fleet: DrilledFleet, pool: str, lost: str) -> None:
    """Once the pool has as many replicas as it should, without that one."""

    async def is_replaced() -> bool:
        told = (await fleet.status())[pool]
        ids = {replica["replica"] for replica in told["replicas"]}
        wanted = told["target_replicas"]
        return lost not in ids and len(ids) == wanted and told["states"] == {"RUNNING": wanted}

    await eventually(f"pool {pool} has another replica for {lost}", is_replaced)


async def of_replica(
    fleet: DrilledFleet,
    pool: str,
    what: int,
    whom: Callable[[psutil.Process], psutil.Process] = lambda replica: replica,
) -> Injury:
    """One that is killed, or frozen until it was replaced; else for FROZEN_S, and goes on."""
    actor = fleet.replicas(pool)[0]
    replica = await fleet.id_of(actor, pool)
    process, began = whom(actor), now()
    process.send_signal(what)
    try:
        await replaced(fleet, pool, replica)
    finally:
        if what == signal.SIGSTOP and process.is_running():
            process.resume()
    return Injury(began, now(), frozenset({replica}))


async def gateway_killed(fleet: DrilledFleet) -> Injury:
    before, began = fleet.gateways(), now()
    before[0].kill()

    async def is_back() -> bool:
        return before[0] not in (found := fleet.gateways()) and len(found) == len(before)

    await eventually("there are two gateways again", is_back)
    return Injury(began, now(), gateway=True)


async def frozen(process: psutil.Process, gateway: bool = False) -> Injury:
    began = now()
    process.suspend()
    try:
        await asyncio.sleep(FROZEN_S)
    finally:
        process.resume()
    return Injury(began, now(), gateway=gateway)


async def controller_killed(fleet: DrilledFleet) -> Injury:
    old, began = fleet.controller(), now()
    old.kill()

    async def is_back() -> bool:
        return fleet.controller().pid != old.pid

    await eventually("Ray Serve has a controller again", is_back)
    return Injury(began, now())


async def redis_killed(fleet: DrilledFleet) -> Injury:
    server, began = fleet.redis_server(), now()
    assert server is not None
    server.kill()

    async def is_back() -> bool:
        return bool(await asyncio.to_thread(fleet.client.ping))

    await eventually("Redis answers again", is_back)
    return Injury(began, now())


async def redis_frozen(fleet: DrilledFleet) -> Injury:
    server = fleet.redis_server()
    assert server is not None
    return await frozen(server)


async def redis_slow(fleet: DrilledFleet, ms: int) -> Injury:
    """Each command waits for so long, or for what is left of it."""
    began = now()
    while now() < began + SLOW_S:
        await asyncio.to_thread(fleet.client.client_pause, ms)
        await asyncio.sleep(ms / 1000 + 0.005)
    return Injury(began, now())


async def replica_cut_off(fleet: DrilledFleet) -> Injury:
    actor = fleet.replicas(POOL)[0]
    replica, began = await fleet.id_of(actor, POOL), now()
    with cut_off(actor):
        await asyncio.sleep(CUT_OFF_S)
    return Injury(began, now(), frozenset({replica}))


async def disk_full(fleet: DrilledFleet) -> Injury:
    """That of logs, metrics, Ray and the temporary directory: nobody is hit by it."""
    began = now()
    filler = await asyncio.to_thread(surroundings.fill, fleet.home.parent)
    try:
        await asyncio.sleep(FULL_S)
    finally:
        filler.unlink()
    return Injury(began, now())


async def clock_set(fleet: DrilledFleet, seconds: int) -> Injury:
    """That of each process of the fleet, Redis and Ray too: nobody is hit by it."""
    began = now()
    surroundings.set_clock(seconds)
    await asyncio.sleep(AFTER_SET_S)
    return Injury(began, now())


async def update(fleet: DrilledFleet) -> Injury:
    """A field that engines read when they start is changed: all of the pool's are replaced."""
    pool = fleet.description.pools[POOL]
    if pool.prestart:
        await eventually("processes wait for the next engine", fleet.somebody_waits)
    before, began = frozenset(await fleet.roles(POOL)), now()
    engine_args = {**pool.engine_args, **UPDATED}
    updating = asyncio.create_task(asyncio.to_thread(fleet.update, POOL, engine_args=engine_args))
    fewest, seen = len(before), ""
    looks = not_known = 0
    # when each of the old ones was seen to leave, and each new one to serve
    left, came = dict[str, float](), dict[str, float]()
    while not updating.done():
        with contextlib.suppress(OSError, ValueError):
            told = await fleet.roles(POOL)
            roles, looks = told.values(), looks + 1
            active = {replica for replica, role in told.items() if role == "active"}
            if "unknown" in roles:  # its gateway has not read the board for a while
                not_known += 1
            else:
                left |= {old: now() for old in before - active - left.keys()}
                came |= {new: now() for new in active - before - came.keys()}
                if len(active) < fewest:
                    fewest, seen = len(active), ", ".join(sorted(roles))
        await asyncio.sleep(LOOK_EVERY_S)
    await updating

    async def all_are_new() -> bool:
        return before.isdisjoint(await fleet.roles(POOL)) and await fleet.is_whole()

    await eventually("all engines are new ones", all_are_new)
    over = now()
    starts_s = [replica["startup_s"] for replica in (await fleet.status())[POOL]["replicas"]]
    pairs = zip(sorted(left.values()), sorted(came.values()), strict=False)
    gaps_s = [serves - leaves for leaves, serves in pairs]
    wrong = []
    if fewest < len(before) - 1:
        wrong.append(f"{fewest} of {len(before)} engines served ({seen})")
    if not_known > looks / 2:
        wrong.append(f"how many served was not known at {not_known} of {looks} looks")
    return Injury(
        began,
        over,
        before,
        planned=True,
        wrong=tuple(wrong),
        measured={
            "fewest_serving": fewest,
            "looks": looks,
            "not_known": not_known,
            "took_s": round(over - began, 1),
            "one_start_s": round(statistics.mean(starts_s), 1),
            "first_left_after_s": round(min(left.values(), default=over) - began, 1),
            "from_leaving_to_next_s": round(statistics.mean(gaps_s) if gaps_s else 0.0, 1),
        },
    )


async def scale_down(fleet: DrilledFleet) -> Injury:
    """To one replica, and back."""
    before, began = frozenset(await fleet.roles(POOL)), now()
    left = before

    async def one_is_left() -> bool:
        nonlocal left
        left = frozenset(await fleet.roles(POOL))
        return len(left) == 1 and (await fleet.status())[POOL]["states"] == {"RUNNING": 1}

    try:
        await asyncio.to_thread(fleet.update, POOL, replicas=1)
        await eventually("one replica is left", one_is_left)
    finally:
        await asyncio.to_thread(fleet.update, POOL, replicas=len(before))
    await eventually("there are as many replicas as before", fleet.is_whole)
    return Injury(began, now(), before - left, planned=True)


async def promotion(fleet: DrilledFleet) -> Injury:
    """One of the pool's replicas takes all traffic, then the warm one as well: as the autoscaler
    and a gateway write it (`router.active`), which may do so meanwhile themselves."""
    board, began = fleet.description.board_of(OVERFLOW), now()
    redis, signer = connect(fleet.redis_url), fleet.signer
    number = active_replicas.ActiveWriter(redis, board, signer)
    try:
        await number.publish(1, await active_replicas.read(redis, board, signer))
        await asyncio.sleep(PROMOTED_AFTER_S)
        if (seen := await active_replicas.read(redis, board, signer)) is not None:
            await number.promote(seen)
    finally:
        await redis.aclose()

    async def all_are_active() -> bool:
        return set((await fleet.roles(OVERFLOW)).values()) == {"active"}

    await eventually("the warm replica takes traffic", all_are_active)
    await asyncio.sleep(PROMOTED_AFTER_S)
    return Injury(began, now(), frozenset(await fleet.roles(OVERFLOW)), planned=True)


SCENARIOS: dict[str, Scenario] = {
    "gateway-killed": gateway_killed,
    "gateway-frozen": lambda fleet: frozen(fleet.gateways()[0], gateway=True),
    "engine-core-killed": lambda fleet: of_replica(fleet, POOL, signal.SIGKILL, engine_core_of),
    "engine-core-frozen": lambda fleet: of_replica(fleet, POOL, signal.SIGSTOP, engine_core_of),
    "replica-killed": lambda fleet: of_replica(fleet, POOL, signal.SIGKILL),
    "replica-frozen": lambda fleet: of_replica(fleet, POOL, signal.SIGSTOP),
    "overflow-engine-killed": lambda f: of_replica(f, OVERFLOW, signal.SIGKILL, engine_core_of),
    "controller-killed": controller_killed,
    "controller-frozen": lambda fleet: frozen(fleet.controller()),
    "redis-killed": redis_killed,
    "redis-frozen": redis_frozen,
    "redis-slow-50-ms": lambda fleet: redis_slow(fleet, 50),
    "redis-slow-500-ms": lambda fleet: redis_slow(fleet, 500),
    "replica-cut-off": replica_cut_off,
    "scale-down": scale_down,
    "promotion": promotion,
    "update": update,
    "disk-full": disk_full,
    "clock-set-forward": lambda fleet: clock_set(fleet, SET_BY_S),
    "clock-set-back": lambda fleet: clock_set(fleet, -SET_BY_S),
}
# They need a fleet that is started in `surroundings.settable_clock`.
CLOCK = frozenset({"clock-set-forward", "clock-set-back"})
# It needs a fleet with so many engines in that pool.
OF_THREE = "update"
# Which pool's model clients ask for, where it is not the first's.
ASKED = {"promotion": OVERFLOW}
# It needs a warm replica in that pool.
WITH_WARM = "promotion"
WARM = {"warm_replicas": 1, "slo": {"interactive": {"ttft_s": 20}}}
