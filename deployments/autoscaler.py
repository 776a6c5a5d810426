"""Ray Serve's autoscaling policy of one pool: `decide` of `autoscaling.scaling`, on data in Redis.

Ray Serve calls it in its controller's loop, ten times a second, so it must never wait. A separate
thread reads Redis; the policy decides from its data once a second. Ray Serve stores the policy's
state (`policy_state`). The number of active replicas goes to the gateways through Redis
(`router.board.active`), the number to run to Ray Serve.

A pool's settings of the fleet file come through Redis too (`router.board.fleet_settings`), because
Ray Serve would forget its decisions if they changed there. So a pool with a fixed number also has a
policy, which reads only the settings. Ray Serve's own bounds are open: `deployments.scaling_bounds`
has Antefix's. https://docs.ray.io/en/latest/serve/advanced-guides/advanced-autoscaling.html
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from msgspec import structs
from ray import cloudpickle
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from autoscaling.scaling.gpu_budget import GpuRequest
from autoscaling.scaling.rates import rates_of
from autoscaling.scaling.scaling import Limits, Signals, State, decide
from common.loops import Loops, Trouble, failures, forever
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.scaling_bounds import ScalingBounds, ask_serve, bounds_of
from deployments.shared_gpus import SharedGpus, requests_at_first
from router.board import active
from router.board.fleet_settings import SettingsReader
from router.board.load import LoadBoard
from router.board.load_reader import LoadReader
from router.board.pool_demand import Decided, DemandReader, GrowingSum, tell_decided
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, connect
from router.redis.redis_keys import BoardName
from router.redis.signature import Signer, forged

logger = logging.getLogger("ray.serve")

DECIDE_PERIOD_S = 1.0
READ_PERIOD_S = 0.5
BOUNDS_PERIOD_S = 5.0
KEEP_S = 10.0
MOST_REPLICAS = 10000
_STATE = "antefix"


@dataclass
class Watch:
    """Data of a pool that a thread has read, and data that it writes.

    The thread ends if `keep` is not called: after a redeployment another policy decides, and the
    demand of the old one must not return.
    """

    board: BoardName
    redis_url: str = field(repr=False)
    # the gateways' latest settings; those of the build until gateways have written some
    fleet: Fleet = field(repr=False)
    signer: Signer | None = field(default=None, repr=False)
    # False until Redis has reported whether there are newer settings
    is_current: bool = False
    signals: Signals | None = None
    demand: int | None = None
    decided: Decided | None = None
    leaving: int = 0
    bounds: ScalingBounds | None = None
    keep_s: float = KEEP_S
    _thread: threading.Thread | None = None
    _until: float = 0.0

    def __post_init__(self) -> None:
        if (pool := self.pool) is not None:
            self.bounds = bounds_of(pool)

    @property
    def pool(self) -> Pool | None:
        """The pool's settings; None: the pool is about to be removed."""
        return self.fleet.pools.get(self.board.pool)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def keep(self) -> None:
        """Continue for `keep_s` more; restart an ended thread."""
        self._until = time.monotonic() + self.keep_s
        if not self.is_alive:
            self.signals = self.demand = self.decided = None
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        trouble = Trouble("autoscaler_thread", f"nothing is read from {self.board}", logger)
        while time.monotonic() < self._until:
            try:
                asyncio.run(self._run())
            except Exception as error:
                time.sleep(trouble.met(error))

    async def _run(self) -> None:
        redis, loops = connect(self.redis_url), Loops()
        board = LoadBoard(time.monotonic)
        reader = DemandReader(redis, self.board, signer=self.signer)
        settings = SettingsReader(redis, self.board.fleet_board, self.signer)
        loads = LoadReader(redis, self.board, board, signer=self.signer)
        read = partial(self._read, redis, loads, reader, settings, GrowingSum())
        try:
            loops.start("scaling_bounds", self._follow_bounds())
            loops.start(
                "autoscaler",
                forever(
                    "autoscaler",
                    read,
                    READ_PERIOD_S,
                    fails=f"failed to read the demand of {self.board}",
                    logger=logger,
                    outages=REDIS_FAILURES,
                ),
            )
            while time.monotonic() < self._until and not loops.ended:  # noqa: ASYNC110  # `keep` moves it
                await asyncio.sleep(READ_PERIOD_S)
        finally:
            await loops.stop()
            await loads.aclose()
            await redis.aclose()

    async def _read(
        self,
        redis: AsyncRedis,
        loads_reader: LoadReader,
        reader: DemandReader,
        settings: SettingsReader,
        output: GrowingSum,
    ) -> None:
        await self._read_settings(settings)
        if self.pool is None or limits_of(self.pool) is None:  # nothing to decide
            self.signals, self.leaving = None, 0
            return
        demand = await reader.read()
        with contextlib.suppress(*REDIS_FAILURES):  # as for the demand, whose reader logs it
            await loads_reader.read()
        board = loads_reader.board
        loads = {**board.loads(), **board.warm()}
        seen = board.active_seen
        generated = output.add({name: load.output_tokens for name, load in loads.items()})
        signals = Signals(
            now=time.monotonic(),
            arrived=demand.arrived,
            rejected=demand.rejected + demand.overflowed,
            prompt_tokens=demand.prompt_tokens,
            uncached_tokens=demand.uncached_tokens,
            output_tokens=generated,
            told_at=demand.told_at,
            waiting=demand.waiting,
        )
        if board.is_read:
            self.leaving = len(board.leaving())
            queued = sum(load.queue.prefill_tokens for load in loads.values())
            signals = replace(
                signals,
                running=len(loads),
                in_flight=sum(load.queue.waiting + load.queue.running for load in loads.values()),
                queued_tokens=demand.queued_tokens + queued,
                promoted=seen.promoted if seen else 0,
                engine=rates_of(loads.values()),
                startup_s=max((load.startup_s for load in loads.values()), default=0.0) or None,
            )
        self.signals = signals
        if self.decided is not None:
            # current counts, so that later failures are reported too
            counts = {"failures": failures.total(), "forged": forged.total()}
            await self._tell(redis, structs.replace(self.decided, **counts))
        if self.demand is not None and board.is_read:
            await self._publish(redis, self.demand, seen)

    async def _read_settings(self, settings: SettingsReader) -> None:
        try:
            if (found := await settings.newer()) is not None:
                self.fleet = Fleet.model_validate_json(found.fleet)
            self.is_current = True
        except REDIS_FAILURES:
            pass  # the settings stay as they were
        except ValueError as error:
            logger.warning("failed to parse the settings of %s: %s", self.board, error)

    async def _follow_bounds(self) -> None:
        """Ask Ray Serve whenever the settings in Redis have other bounds than it last confirmed."""
        refused = 0
        while True:
            pool, name = self.pool, self.board.pool
            wanted = self.bounds if pool is None else bounds_of(pool)
            if wanted != self.bounds:
                self.bounds = await asyncio.to_thread(ask_serve, name) or self.bounds
            refused = 0 if wanted == self.bounds else refused + 1
            if refused == 2:  # the first time, a change may not have reached all processes
                logger.error(
                    "failed to change the replica limits of %s to %s: Ray Serve keeps %s",
                    *(self.board, wanted, self.bounds),
                )
            await asyncio.sleep(BOUNDS_PERIOD_S if refused else READ_PERIOD_S)

    async def _tell(self, redis: AsyncRedis, decided: Decided) -> None:
        with contextlib.suppress(*REDIS_FAILURES):  # only for display, and written again soon
            await tell_decided(redis, self.board, decided, self.signer)

    async def _publish(self, redis: AsyncRedis, demand: int, seen: active.Active | None) -> None:
        if seen == active.Active(demand):
            return
        try:
            await active.ActiveWriter(redis, self.board, self.signer).publish(demand, seen)
        except REDIS_FAILURES as error:
            logger.warning("failed to publish the demand of %s: %s", self.board, error)


# Pools that share a budget are decided in one process, Ray Serve's controller.
_SHARED_GPUS = SharedGpus()


class PoolAutoscaler:
    """The policy object of one pool. `watch`: the data of its decisions; None before its first
    call.

    Ray Serve pickles it to its controller and again for every replica that it starts; the thread
    stays in the deciding process.
    """

    def __init__(
        self, board: BoardName, redis_url: str, fleet: Fleet, gpus: float, *, signer: Signer | None
    ) -> None:
        self._board = board
        self._signer = signer
        self._fleet = fleet
        self._gpus = gpus
        self._redis_url = redis_url
        self.watch: Watch | None = None
        self._decided_at = float("-inf")
        self._target: int | None = None
        self._trouble = Trouble(
            "autoscaler", f"failed to decide the number of replicas of {board}; keeping it", logger
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "watch": None}

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas to run, and the state to store. If deciding fails, both
        stay unchanged."""
        if self.watch is None:
            self.watch = Watch(self._board, self._redis_url, self._fleet, self._signer)
        watch = self.watch
        watch.keep()
        state = context.policy_state
        try:
            state = self._decided(watch, context)
        except Exception as error:
            # while a policy raises, Ray Serve does not heal any application
            self._trouble.met(error)
            state = {}  # the state may be the reason for the error
        target = context.target_num_replicas if self._target is None else self._target
        return target, state

    def _decided(self, watch: Watch, context: AutoscalingContext) -> dict[str, Any]:
        state, now, pool = context.policy_state, time.monotonic(), watch.pool
        is_due = watch.is_current and now - self._decided_at >= DECIDE_PERIOD_S
        if is_due and pool is not None:  # otherwise the pool is being removed
            if (limits := limits_of(pool)) is None:
                watch.demand = watch.decided = None
                self._target, state = self._bounded(watch, pool.first_replicas, context), {}
                always = GpuRequest(*(self._target,) * 3, self._gpus, self._target)
                _SHARED_GPUS.tell(self._board, always)
            elif watch.signals is not None:
                self._decided_at = now  # even if the decision fails
                state = self._decide(watch, limits, watch.signals, context)
        return state

    def _decide(
        self, watch: Watch, limits: Limits, signals: Signals, context: AutoscalingContext
    ) -> dict[str, Any]:
        starting = max(0, context.target_num_replicas - context.current_num_replicas)
        known = State.from_dict(context.policy_state.get(_STATE))
        # without Redis, Ray Serve's number is used
        running = context.current_num_replicas if signals.running is None else signals.running
        if known.demand is None:
            # While engines are replaced, old and new ones exist at the same time.
            running = min(running, context.target_num_replicas)
            starting = min(starting, context.target_num_replicas - running)
        decision = decide(
            replace(signals, now=time.monotonic(), running=running, starting=starting),
            known,
            limits,
        )
        request = GpuRequest(
            minimum=limits.min_replicas,
            demand=decision.demand,
            target=decision.target,
            gpus=self._gpus,
            current=max(context.target_num_replicas, signals.running or 0),
            leaving=watch.leaving,
        )
        granted = _granted(self._board, request, watch.fleet)
        granted = self._bounded(watch, granted, context)
        if granted != self._target:
            logger.info(
                "scaling %s to %s replicas, %d of them for traffic: %s",
                self._board,
                granted,
                min(decision.demand, granted),
                dict(decision.reasons),
            )
        watch.demand, self._target = min(decision.demand, granted), granted
        told = decision.reasons
        watch.decided = Decided(
            demand=watch.demand,
            target=granted,
            because=str(told["because"]),
            arrivals=float(told.get("requests_per_s", 0.0)),
            forecast=float(told["expected_per_s"]) if "expected_per_s" in told else None,
        )
        return {_STATE: decision.state.to_dict()}

    def _bounded(self, watch: Watch, target: int, context: AutoscalingContext) -> int:
        bounds, current = watch.bounds, context.target_num_replicas
        return target if bounds is None else bounds.clipped(target, current)


def _granted(board: BoardName, request: GpuRequest, fleet: Fleet) -> int:
    """Return the pool's replicas, counted against the fleet's GPU budget."""
    if fleet.gpu_budget is None or request.gpus <= 0:
        _SHARED_GPUS.tell(board, request)
        return request.target
    return _SHARED_GPUS.granted(board, request, fleet.gpu_budget, requests_at_first(fleet))


def autoscaling_config(
    fleet: Fleet,
    name: str,
    gpus: float,
    redis_url: str,
    *,
    signer: Signer | None,
    replicas: int | None = None,
) -> AutoscalingConfig:
    """Return Ray Serve's configuration of a pool that runs `replicas` now; None: it is new."""
    policy = AutoscalingPolicy(policy_function=PoolAutoscaler)  # type: ignore[no-untyped-call]
    # Not as keywords of the policy: Ray Serve logs those, and the address may contain a password.
    policy.set_serialized_policy_def(
        cloudpickle.dumps(  # type: ignore[no-untyped-call]
            PoolAutoscaler(fleet.board_of(name), redis_url, fleet, gpus, signer=signer)
        )
    )
    return AutoscalingConfig(
        min_replicas=0,
        # Ray Serve starts with this number again when it gets other engines
        initial_replicas=fleet.pools[name].first_replicas if replicas is None else replicas,
        max_replicas=MOST_REPLICAS,
        # the policy decides the times
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        downscale_to_zero_delay_s=0.0,
        policy=policy,
    )


def limits_of(pool: Pool) -> Limits | None:
    """Return the bounds of a pool's replicas; None if the number is fixed."""
    slo, settings = pool.slo.by_class().get("interactive"), pool.autoscaling
    if slo is None or not pool.is_scaled:
        return None
    if settings is None:
        # all replicas always exist; the number that takes traffic is decided
        return Limits(pool.replicas, pool.first_replicas, slo, pool.warm_replicas)
    return Limits(
        min_replicas=settings.min_replicas,
        max_replicas=settings.max_replicas,
        slo=slo,
        warm_replicas=pool.warm_replicas,
        startup_s=settings.startup_s,
        downscale_hold_s=settings.downscale_hold_s,
        idle_s=settings.idle_s,
    )
