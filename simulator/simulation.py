"""A trace played on a simulated pool under a policy: what became of every request.

    run(trace, settings, policy)    policy: antefix, serve-default, serve-default:T,
                                    serve-scaling, fixed:N

`antefix` is our autoscaler, gateway and warm replicas; `fixed:N` the same gateway over N replicas;
`serve-default` Ray Serve's own autoscaler and routing (simulator/serve_default.py), with T as its
target_ongoing_requests; `serve-scaling` its autoscaler over our gateway. The same trace, settings
and policy give the same result. It ends with the last answer, and replicas are paid for until then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from autoscaling.pool_scheduler import PoolSettings
from autoscaling.slo import PriorityClass, Slo
from simulator.engines import Hardware
from simulator.fleet import Call, Progress, SimulatedFleet
from simulator.gateway import ScheduledFleet, SimulatedGateway
from simulator.traces import Trace
from simulator.types import FleetSettings, Result, Sample

TICK_S = 1.0
# A policy that leaves requests unanswered for so long after the last one came never serves them.
MAX_TAIL_S = 86_400.0


class Stack(Protocol):
    """Who places the requests, and decides how many replicas there are."""

    @property
    def waiting(self) -> int:
        """Requests that wait outside of the replicas."""
        ...

    @property
    def active(self) -> int:
        """Replicas that take traffic."""
        ...

    def arrive(self, call: Call, now: float) -> None: ...

    def progressed(self, progress: Progress, now: float) -> None: ...

    def tick(self, now: float) -> Mapping[str, float | str]:
        """Every TICK_S: scale the fleet. Says why."""
        ...


def run(trace: Trace, settings: FleetSettings, policy: str) -> Result:
    """Raises ValueError for a policy that does not exist, and for a request that never fits;
    RuntimeError if the policy leaves requests unanswered for ever."""
    settings = replace(settings, hardware=_in_blocks_of(settings.hardware, trace.block_tokens))
    kind, _, argument = policy.partition(":")
    replicas = settings.first_replicas
    if kind == "fixed" and argument.isdecimal() and int(argument) > 0:
        replicas = int(argument)
    elif policy not in ("antefix", "serve-scaling") and not (
        kind == "serve-default" and _is_target(argument)
    ):
        known = "antefix, serve-default, serve-default:T, serve-scaling, fixed:N"
        raise ValueError(f"unknown policy {policy!r}: it must be one of {known}")
    fleet = SimulatedFleet(settings.hardware, settings.startup_s, replicas)
    elsewhere = None
    if kind == "serve-default":
        return _play(trace, settings, policy, fleet, None, _serve(fleet, settings, argument))
    if settings.overflow is not None:
        hardware = _in_blocks_of(settings.overflow.hardware, trace.block_tokens)
        elsewhere = SimulatedFleet(hardware, 0.0, settings.overflow.replicas)
    stack = _antefix(trace, settings, fleet, elsewhere, kind)
    return _play(trace, settings, policy, fleet, elsewhere, stack)


def _is_target(argument: str) -> bool:
    try:
        return not argument or 0.0 < float(argument) < math.inf
    except ValueError:
        return False


def _serve(fleet: SimulatedFleet, settings: FleetSettings, target: str) -> Stack:
    from simulator.serve_default import TARGET_ONGOING_REQUESTS, ServeStack

    return ServeStack(
        fleet,
        settings,
        float(target) if target else TARGET_ONGOING_REQUESTS,
    )


def _antefix(
    trace: Trace,
    settings: FleetSettings,
    fleet: SimulatedFleet,
    elsewhere: SimulatedFleet | None,
    kind: str,
) -> Stack:
    segment_tokens = trace.block_tokens or 0
    slos: dict[PriorityClass, Slo] = {"interactive": settings.slo}
    if settings.batch_slo is not None:
        slos["batch"] = settings.batch_slo
    rules = settings.overflow.rules if settings.overflow else None
    overflow = None
    if elsewhere is not None:
        overflow = ScheduledFleet(elsewhere, PoolSettings(), segment_tokens, settings.seed)
    asked = PoolSettings(slos, settings.batch_queue, rules)
    pool = ScheduledFleet(fleet, asked, segment_tokens, settings.seed, overflow)
    if kind == "fixed":
        return SimulatedGateway(pool)
    if kind == "serve-scaling":
        from simulator.serve_default import ServeScaledGateway

        return ServeScaledGateway(pool, settings)
    from simulator.autoscaler import AutoscaledGateway

    return AutoscaledGateway(pool, settings)


def _play(
    trace: Trace,
    settings: FleetSettings,
    policy: str,
    fleet: SimulatedFleet,
    elsewhere: SimulatedFleet | None,
    stack: Stack,
) -> Result:
    calls = [Call(number, request) for number, request in enumerate(trace.requests)]
    samples: list[Sample] = []
    arrived, now, next_tick = 0, 0.0, 0.0
    while arrived < len(calls) or now < trace.seconds or fleet.requests or stack.waiting:
        times = [next_tick]
        if arrived < len(calls):
            times.append(calls[arrived].request.at)
        if (ready_at := fleet.next_ready_at) is not None:
            times.append(ready_at)
        # who waits may go as soon as another ends
        if stack.waiting and (change_at := fleet.next_change_at) is not None:
            times.append(change_at)
        now = max(now, min(times))
        if now > trace.seconds + MAX_TAIL_S:
            raise RuntimeError(f"{policy} leaves {stack.waiting} requests waiting for ever")
        stack.progressed(fleet.advance(now), now)
        if elsewhere is not None:
            elsewhere.advance(now)
        if now >= next_tick:
            next_tick += TICK_S
            samples.append(_sample(fleet, stack, now, stack.tick(now)))
        while arrived < len(calls) and calls[arrived].request.at <= now:
            stack.arrive(calls[arrived], now)
            arrived += 1
    if elsewhere is not None:
        elsewhere.advance(math.inf)
    return Result(
        policy=policy,
        trace=trace,
        settings=settings,
        calls=tuple(calls),
        samples=tuple(samples),
        seconds=now,
        replica_seconds=fleet.replica_seconds(now),
    )


def _sample(
    fleet: SimulatedFleet, stack: Stack, now: float, reasons: Mapping[str, float | str]
) -> Sample:
    return Sample(
        at=now,
        paid=fleet.paid,
        serving=len(fleet.serving),
        active=stack.active,
        target=len(fleet.serving) + len(fleet.starting),
        in_flight=fleet.requests,
        reasons=reasons,
    )


def _in_blocks_of(hardware: Hardware, block_tokens: int | None) -> Hardware:
    """The same KV cache in the blocks that the trace's hashes stand for."""
    if block_tokens is None:
        return hardware
    capacity = hardware.blocks * hardware.block_tokens
    return replace(hardware, block_tokens=block_tokens, blocks=capacity // block_tokens)
