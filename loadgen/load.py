"""The traffic of a run: a workload or a trace, its arrivals, and the form of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import Problem
from loadgen.arrivals import ramp
from loadgen.planning import RequestForm, of_conversations, of_trace
from loadgen.player import PlannedSession
from loadgen.workloads import WORKLOADS, ChatTurn, conversations
from simulator import traces


@dataclass(frozen=True)
class OfferedTraffic:
    """Traffic. `told`: its description for the result. `example`: one of its requests."""

    told: dict[str, Any]
    plan: Callable[[RequestForm], list[PlannedSession]] = field(repr=False)
    example: ChatTurn = field(repr=False)


def of_workload(
    name: str, rate: float | None, ramp_to: float | None, seconds: float, lengths: float, seed: int
) -> OfferedTraffic:
    """Return the traffic of a workload. `rate`: requests per second; None: the workload's default.
    Raises Problem."""
    if name not in WORKLOADS:
        raise Problem(f"unknown workload {name!r}", f"use one of {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    first = rate or workload.rate
    if ramp_to is None:
        arrivals = workload.arrivals(seconds, first)
    else:
        arrivals = ramp(first / workload.turns, ramp_to / workload.turns, seconds)
    talks = conversations(name, seed, seconds, arrivals, lengths)
    told = {
        "workload": name,
        "arrivals": "poisson" if ramp_to is None else "ramp",
        "rate_per_s": first,
        "ramp_to_per_s": ramp_to,
        "seconds": seconds,
        "lengths": lengths,
        "seed": seed,
    }
    return OfferedTraffic(told, lambda form: of_conversations(talks, form), talks[0].turns[0])


def of_trace_file(
    file: Path, scale: float, seconds: float, lengths: float, seed: int
) -> OfferedTraffic:
    """Return the first `seconds` of a trace, with `scale` times its requests. Raises Problem."""
    trace = traces.read(file, seed).until(seconds)
    if not trace.requests:
        raise Problem(f"{file} has no request in its first {seconds:g} seconds", "raise --duration")
    if scale != 1.0:
        trace = trace.scaled(scale, seed)
    if not trace.requests:
        raise Problem(
            f"--scale {scale:g} leaves no request of {file} in its first {seconds:g} seconds",
            "raise either",
        )
    told = {
        "workload": file.name,
        "arrivals": "trace",
        "scale": scale,
        "seconds": seconds,
        "lengths": lengths,
        "seed": seed,
    }
    return OfferedTraffic(told, lambda form: of_trace(trace, form, lengths), ChatTurn(()))
