"""A fleet that meets its SLO at some of the rates that it is offered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness.fleets.fleet import BenchFleet
from benchmarks.harness.load import offered_load
from benchmarks.harness.load.trace_player import ReplayedRequest
from cli.gateway.stream_client import Endpoint
from deployments.wire.engine_pass import EnginePasses
from simulator.traces import Trace

NOWHERE = Endpoint("gateway", "http://127.0.0.1:9", {})
FLEET = BenchFleet(NOWHERE, NOWHERE, "model", "", EnginePasses("secret"), Path())


def serving(
    monkeypatch: pytest.MonkeyPatch, meets: Callable[[float, int], bool]
) -> list[tuple[str, float]]:
    """Requests meet the SLO where `meets` says so of the rate and of how often it was offered. The
    traces that are played, with their rates, nearly."""
    played: list[tuple[str, float]] = []

    async def play(http: object, to: object, model: object, trace: Trace) -> list[ReplayedRequest]:
        rate = len(trace.requests) / trace.seconds
        played.append((trace.name, rate))
        ttft = 1.0 if meets(rate, len(played)) else 9.0
        return [ReplayedRequest(of.at, 200, ttft, sent_late=0.0) for of in trace.requests]

    monkeypatch.setattr(offered_load, "play", play)
    monkeypatch.setattr(offered_load, "SETTLE_S", 0.0)
    return played
