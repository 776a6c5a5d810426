"""More than a real fleet can serve in time, and that other requests meet their SLO."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import aiohttp
import pytest

from benchmarks.harness.load.trace_player import ReplayedRequest, play
from cli.common.gateway_client import FIRST_QUESTION
from cli.gateway.stream_client import Endpoint
from simulator.traces import Request, Trace
from tests.real.conftest import RunningFleet

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

SLO_S = 10.0  # of tests/real/fleet.yaml
# Several times what two engines can prefill within the SLO.
REQUESTS, WITHIN_S, PROMPT_TOKENS = 300, 4.0, 900
WARM_UP = 16
NEVER = {"x-antefix-overflow": "never"}


def burst(count: int) -> Trace:
    rng = random.Random(1)
    times = sorted(rng.uniform(0, WITHIN_S * count / REQUESTS) for _ in range(count))
    return Trace("burst", tuple(Request(at, PROMPT_TOKENS, 4) for at in times), WITHIN_S)


async def offered(
    fleet: RunningFleet, count: int, headers: dict[str, str]
) -> list[ReplayedRequest]:
    gateway = Endpoint("gateway", fleet.root, {**fleet.headers, **headers})
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        return await play(http, gateway, fleet.model, burst(count))


async def test_requests_that_would_miss_the_slo_are_rejected_and_the_rest_are_served(
    fleet: RunningFleet,
) -> None:
    """How many of the rest are late depends on the cores: `make bench-overload` measures it."""
    await offered(fleet, WARM_UP, NEVER)
    outcomes = await offered(fleet, REQUESTS, NEVER)
    assert [outcome for outcome in outcomes if not outcome.is_fair] == []
    served = [outcome for outcome in outcomes if outcome.status == 200]
    refused = [outcome for outcome in outcomes if outcome.status == 429]
    assert served and refused
    predicted = [outcome.predicted_ttft for outcome in served]
    assert [ttft for ttft in predicted if ttft is None or ttft > SLO_S] == []
    # as soon as what was admitted is done, all are served again
    (after,) = await offered(fleet, 1, NEVER)
    assert after.status == 200


@pytest.mark.core
async def test_an_overflowed_request_is_served_by_the_other_model_and_reports_it(
    fleet: RunningFleet,
) -> None:
    body = {
        "model": fleet.model,
        "messages": [{"role": "user", "content": FIRST_QUESTION}],
        "temperature": 0,
        "max_tokens": 16,
    }
    headers = {**fleet.headers, "x-antefix-overflow": "only"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{fleet.root}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        answered = await answer.json()
        assert answer.status == 200, answered
        assert answer.headers["x-antefix-admission"] == "overflowed"
        assert answer.headers["x-antefix-model"] == answered["model"] == fleet.other_model
    assert "Tokyo" in answered["choices"][0]["message"]["content"]


async def test_a_trace_is_simulated_with_a_calibrated_engine(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    file = tmp_path / "engine.json"
    measured = await asyncio.to_thread(fleet.antefix, "calibrate", str(file), "-o", "json")
    assert measured.returncode == 0, measured.stderr
    found = json.loads(measured.stdout)
    assert found["startup_s"] > 1
    hardware = found["hardware"]
    assert (hardware["sequences"], hardware["block_tokens"]) == (16, 128)
    assert 10 < hardware["prefill_rate"] < 100_000
    assert 0.001 < hardware["step_s"] + hardware["sequence_s"] < 5
    arguments = ("--calibration", str(file), "--trace", "noise", "--duration", "30", "-o", "json")
    played = await asyncio.to_thread(fleet.antefix, "backtest", "--policy", "fixed:4", *arguments)
    assert played.returncode == 0, played.stderr
    assert "fixed:4" in json.loads(played.stdout)["policies"]
