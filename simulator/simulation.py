"""A trace played on a simulated pool under a policy, with the result of every request.

    run(trace, settings, policy), where policy is one of:

    antefix               Antefix: autoscaler, gateway and warm replicas
    fixed:N               Antefix's gateway over N replicas
    all-at:S              the same over all replicas, requested at S seconds
    PEER                  another autoscaler, and the usual routing
    PEER+antefix-routing  another autoscaler over Antefix's gateway

PEER is `serve-default` or `serve-default:T` (simulator/serve_default.py), T being its
target_ongoing_requests, or an HPA's or KEDA's: simulator/kubernetes.py. The same trace, settings
and policy give the same result. It ends with the last answer, and replicas are paid for until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from autoscaling.admission.scheduling_request import PoolSettings
from autoscaling.slo import PriorityClass, Slo
from simulator import kubernetes
from simulator.engines import Hardware
from simulator.fleet import Call, Progress, Replica, SimulatedFleet
from simulator.gateway import PromptPool, ScheduledFleet, SimulatedGateway
from simulator.peers import AllAt, Autoscaler, PlainStack, ScaledGateway
from simulator.prefill import SplitFleet
from simulator.traces import Trace
from simulator.types import FleetSettings, Result, Sample

TICK_S = 1.0
# A policy that leaves requests unanswered for this long after the last arrival never serves them.
MAX_TAIL_S = 86_400.0
KNOWN = (
    "antefix, fixed:N, all-at:SECONDS, serve-default, serve-default:T, hpa-waiting:T,"
    " hpa-concurrency:T, keda-waiting:T, keda-concurrency:T, and each except the first three with"
    " +antefix-routing appended"
)
WITH_ANTEFIX_ROUTING = "+antefix-routing"


class Stack(Protocol):
    """Places the requests, and decides the number of replicas."""

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
        """Scale the fleet every TICK_S. Return the reasons."""
        ...


class FleetInPlay(Protocol):
    """What a play needs of its replicas: a `SimulatedFleet`, or several as one."""

    @property
    def serving(self) -> Sequence[Replica]: ...
    @property
    def starting(self) -> Sequence[Replica]: ...
    @property
    def paid(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def next_ready_at(self) -> float | None: ...
    @property
    def next_change_at(self) -> float | None: ...
    def advance(self, now: float) -> Progress: ...
    def replica_seconds(self, now: float) -> float: ...


def run(trace: Trace, settings: FleetSettings, policy: str) -> Result:
    """Play a trace. Raises ValueError for a policy that does not exist or cannot start, and for a
    request that never fits; RuntimeError if the policy leaves requests unanswered forever."""
    settings = replace(settings, hardware=in_blocks_of(settings.hardware, trace.block_tokens))
    kind, _, argument = policy.partition(":")
    fixed = kind == "fixed" and argument.isdecimal() and int(argument) > 0
    replicas = int(argument) if fixed else settings.first_replicas
    fleet = SimulatedFleet(settings.hardware, settings.startup_s, replicas, settings.tiers)
    if fixed:
        return _played(trace, settings, policy, fleet, SimulatedGateway)
    if policy == "antefix":
        from simulator.autoscaler import AutoscaledGateway

        scaled = partial(AutoscaledGateway, settings=settings)
        return _played(trace, settings, policy, fleet, scaled)
    if kind == "all-at" and argument.isdecimal():
        at = AllAt(float(argument), settings.max_replicas)
        return _played(trace, settings, policy, fleet, partial(ScaledGateway, autoscaler=at))
    peer = policy.removesuffix(WITH_ANTEFIX_ROUTING)
    autoscaler = kubernetes.autoscaler(peer, settings) or _serve(peer, settings)
    if peer == policy:
        plain = PlainStack(fleet, autoscaler, settings.seed)
        return play(trace, settings, policy, fleet, None, plain)
    routed = partial(ScaledGateway, autoscaler=autoscaler)
    return _played(trace, settings, policy, fleet, routed)


def _played(
    trace: Trace,
    settings: FleetSettings,
    policy: str,
    fleet: SimulatedFleet,
    stack: Callable[[ScheduledFleet], Stack],
) -> Result:
    """Play a trace behind Antefix's scheduler."""
    pool, elsewhere = _scheduled(trace, settings, fleet)
    in_play: FleetInPlay = fleet
    if pool.prefill is not None:
        in_play = SplitFleet(fleet, pool.prefill.pool.fleet)
    return play(trace, settings, policy, in_play, elsewhere, stack(pool))


def _serve(policy: str, settings: FleetSettings) -> Autoscaler:
    kind, with_target, target = policy.partition(":")
    if kind != "serve-default" or (with_target and not kubernetes.is_target(target)):
        raise ValueError(f"unknown policy {policy!r}: it must be one of {KNOWN}")
    from simulator.serve_default import TARGET_ONGOING_REQUESTS, ServeDefaultAutoscaler

    requests = float(target) if with_target else TARGET_ONGOING_REQUESTS
    return ServeDefaultAutoscaler(settings, requests)


def _scheduled(
    trace: Trace, settings: FleetSettings, fleet: SimulatedFleet
) -> tuple[ScheduledFleet, SimulatedFleet | None]:
    """Return the pool under Antefix's scheduler, and the pool of its overflow."""
    segment_tokens = trace.block_tokens or 0
    slos: dict[PriorityClass, Slo] = {"interactive": settings.slo}
    if settings.batch_slo is not None:
        slos["batch"] = settings.batch_slo
    elsewhere = overflow = rules = None
    if settings.overflow is not None:
        rules = settings.overflow.rules
        hardware = in_blocks_of(settings.overflow.hardware, trace.block_tokens)
        elsewhere = SimulatedFleet(hardware, 0.0, settings.overflow.replicas)
        overflow = ScheduledFleet(elsewhere, PoolSettings(), segment_tokens, settings.seed)
    asked, prefill = PoolSettings(slos, settings.batch_queue, rules), None
    if (of := settings.prefill) is not None:
        hardware = in_blocks_of(of.hardware, trace.block_tokens)
        prompts = SimulatedFleet(hardware, 0.0, of.replicas, of.tiers)
        pool = ScheduledFleet(prompts, PoolSettings(), segment_tokens, settings.seed)
        prefill = PromptPool(pool, of.always)
    found = ScheduledFleet(
        fleet, asked, segment_tokens, settings.seed, overflow=overflow, prefill=prefill
    )
    return found, elsewhere


def play(
    trace: Trace,
    settings: FleetSettings,
    policy: str,
    fleet: FleetInPlay,
    elsewhere: SimulatedFleet | None,
    stack: Stack,
) -> Result:
    """Play a trace on a fleet behind a stack. `elsewhere`: the fleet of the overflow pool.

    Raises as `run` does.
    """
    calls = [Call(number, request) for number, request in enumerate(trace.requests)]
    samples: list[Sample] = []
    arrived, now, next_tick = 0, 0.0, 0.0
    while arrived < len(calls) or now < trace.seconds or fleet.requests or stack.waiting:
        times = [next_tick]
        if arrived < len(calls):
            times.append(calls[arrived].request.at)
        if (ready_at := fleet.next_ready_at) is not None:
            times.append(ready_at)
        # a waiting request may start when another one ends
        if stack.waiting and (change_at := fleet.next_change_at) is not None:
            times.append(change_at)
        now = max(now, min(times))
        if now > trace.seconds + MAX_TAIL_S:
            raise RuntimeError(f"{policy} leaves {stack.waiting} requests waiting forever")
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
    fleet: FleetInPlay, stack: Stack, now: float, reasons: Mapping[str, float | str]
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


def in_blocks_of(hardware: Hardware, block_tokens: int | None) -> Hardware:
    """Return the same KV cache in blocks of the size of the trace's hashes."""
    if block_tokens is None:
        return hardware
    capacity = hardware.blocks * hardware.block_tokens
    return replace(hardware, block_tokens=block_tokens, blocks=capacity // block_tokens)
