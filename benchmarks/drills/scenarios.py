"""The faults of the chaos tests. Each returns when the fault is over and the process is back.

Raises Problem where this machine does not allow the fault.
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
from benchmarks.harness.fleets.drilled_fleet import DrilledFleet, engine_core_of, eventually
from benchmarks.harness.load.client_answers import now
from router.board import active as active_replicas
from router.redis.redis_client import connect

FROZEN_S = 15.0
SLOW_S = 10.0
CUT_OFF_S = 10.0
FULL_S = 15.0
SET_BY_S, AFTER_SET_S = 3600, 10.0
# Between the steps of a promotion.
PROMOTED_AFTER_S = 3.0
LOOK_EVERY_S = 0.2
# A field that engines read when they start, on which answers do not depend.
UPDATED = {"max_num_seqs": 9}
POOL, OVERFLOW = "engine", "other"

Scenario = Callable[[DrilledFleet], Awaitable[Injury]]


async def replaced(fleet: DrilledFleet, pool: str, lost: str) -> None:
    """Wait until the pool has all its replicas, without that one."""

    async def is_replaced() -> bool:
        told = (await fleet.status())[pool]
        ids = {replica["replica"] for replica in told["replicas"]}
        wanted = told["target_replicas"]
        return lost not in ids and len(ids) == wanted and told["states"] == {"RUNNING": wanted}

    await eventually(f"pool {pool} has another replica for {lost}", is_replaced)


async def of_replica(fleet: DrilledFleet, pool: str, what: int, core: bool = False) -> Injury:
    """A replica, or its engine `core`, that is killed, or frozen until it was replaced."""
    actor = fleet.replicas(pool)[0]
    replica = await fleet.id_of(actor, pool)
    process, began = engine_core_of(actor) if core else actor, now()
    process.send_signal(what)
    try:
        await replaced(fleet, pool, replica)
    finally:
        if what == signal.SIGSTOP and process.is_running():
            process.resume()
    return Injury(began, now(), frozenset({replica}))


async def killed(process: psutil.Process, is_back: Callable[[], bool], gateway: bool) -> Injury:
    began = now()
    name = process.name()
    process.kill()
    await eventually(f"{name} is back", lambda: asyncio.to_thread(is_back))
    return Injury(began, now(), gateway=gateway)


async def gateway_killed(fleet: DrilledFleet) -> Injury:
    lost, *others = fleet.gateways()

    def is_back() -> bool:
        return lost not in (found := fleet.gateways()) and len(found) == len(others) + 1

    return await killed(lost, is_back, gateway=True)


async def frozen(process: psutil.Process, gateway: bool = False) -> Injury:
    began = now()
    process.suspend()
    try:
        await asyncio.sleep(FROZEN_S)
    finally:
        process.resume()
    return Injury(began, now(), gateway=gateway)


async def controller_killed(fleet: DrilledFleet) -> Injury:
    old = fleet.controller()
    return await killed(old, lambda: fleet.controller().pid != old.pid, gateway=False)


async def redis_killed(fleet: DrilledFleet) -> Injury:
    server = fleet.redis_server()
    assert server is not None
    return await killed(server, lambda: bool(fleet.client.ping()), gateway=False)


async def redis_frozen(fleet: DrilledFleet) -> Injury:
    server = fleet.redis_server()
    assert server is not None
    return await frozen(server)


async def redis_slow(fleet: DrilledFleet, ms: int) -> Injury:
    """Each command waits up to `ms` milliseconds."""
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
    """The disk of logs, metrics, Ray and temporary files: no request is hit."""
    began = now()
    filler = await asyncio.to_thread(surroundings.fill, fleet.home.parent)
    try:
        await asyncio.sleep(FULL_S)
    finally:
        filler.unlink()
    return Injury(began, now())


async def clock_set(fleet: DrilledFleet, seconds: int) -> Injury:
    """The clock of all processes of the fleet, Redis and Ray included: no request is hit."""
    began = now()
    surroundings.set_clock(seconds)
    await asyncio.sleep(AFTER_SET_S)
    return Injury(began, now())


async def update(fleet: DrilledFleet) -> Injury:
    """A field changes that engines read when they start, so all of the pool are replaced."""
    pool = fleet.description.pools[POOL]
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
            if "unknown" in roles:  # the gateway has not read the board for a while
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
    """One replica of the pool takes all traffic, then the warm one as well. Written as by the
    autoscaler and a gateway (`router.board.active`), which may do so meanwhile themselves."""
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
    "engine-core-killed": lambda fleet: of_replica(fleet, POOL, signal.SIGKILL, core=True),
    "engine-core-frozen": lambda fleet: of_replica(fleet, POOL, signal.SIGSTOP, core=True),
    "replica-killed": lambda fleet: of_replica(fleet, POOL, signal.SIGKILL),
    "replica-frozen": lambda fleet: of_replica(fleet, POOL, signal.SIGSTOP),
    "overflow-engine-killed": lambda f: of_replica(f, OVERFLOW, signal.SIGKILL, core=True),
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
# These need a fleet started in `surroundings.settable_clock`.
CLOCK = frozenset({"clock-set-forward", "clock-set-back"})
# This needs three engines in the pool.
OF_THREE = "update"
# The pool whose model clients ask for, where it is not the first.
ASKED = {"promotion": OVERFLOW}
# This needs a warm replica in that pool.
WITH_WARM = "promotion"
WARM = {"warm_replicas": 1, "slo": {"interactive": {"ttft_s": 20}}}
