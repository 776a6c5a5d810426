"""Measure what metrics and explanations cost a gateway: make bench-observability

One gateway process serves streams in pairs of rounds: one with nothing but what serves, one with
some of the parts that only report. CPU bounds a gateway, so rounds are compared by CPU time per
token; the cost is the median over the pairs. Scrapes of the node's endpoint are measured at the end
and added. Engines are played in a separate process; Redis, the log and the files of metrics are
real.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.observability import gateway
from benchmarks.observability.gateway import ObservedGatewaySettings
from benchmarks.observability.results import (
    NOTHING,
    VARIANTS,
    MeasuredRound,
    ObservabilityResult,
    Pair,
    figures,
    goals,
)
from benchmarks.stand import child_process, own_redis, played_engine, report
from benchmarks.stand.child_process import START_S, STOP_S, heard
from benchmarks.stand.closed_loop import bodies, play
from benchmarks.stand.ending import stopped_in_the_end
from benchmarks.stand.options import parser_of
from benchmarks.stand.played_engine import EnginesSettings
from cli import stream_client
from cli.local.ports import free_ports
from cli.stream_client import Endpoint
from deployments.fleet.fleet import Fleet
from deployments.models.model import embedded_model

MODEL, POOL = "small", "main"
# The operator may read all decisions, so these are stored twice, as in a fleet with operators.
TENANTS = ("tenant", "operator")
PROMPT_TOKENS, TOKENS, CLIENTS = 500, 64, 32
# About as fast as a gateway passes tokens on.
STEP_S = 0.001
SCRAPES, ROUND_S, WARM_UP_S = 20, 1.25, 4.0


@dataclass(frozen=True)
class ObservabilityBench:
    """A gateway with its engines; `pipe` leads to the gateway's process."""

    pipe: Connection
    gateways: list[Endpoint]
    metrics_url: str

    async def measure(self, turns: int) -> ObservabilityResult:
        requests = bodies(MODEL, PROMPT_TOKENS, TOKENS)
        pairs: list[Pair] = []
        async with stream_client.session() as http:

            async def measured(parts: frozenset[str]) -> MeasuredRound:
                before = await self._leave(parts)
                served = await play(http, self.gateways, requests, CLIENTS, ROUND_S)
                used = await self._leave(parts) - before
                tokens = served.requests * TOKENS
                return MeasuredRound(served.requests, tokens, served.seconds, used)

            await play(http, self.gateways, requests, CLIENTS, WARM_UP_S)
            for turn in range(turns):
                for parts in random.sample(VARIANTS, len(VARIANTS)):
                    rounds = random.sample([(False, NOTHING), (True, parts)], 2)
                    found = {is_there: await measured(these) for is_there, these in rounds}
                    pairs.append(Pair(parts, found[False], found[True]))
                if (turn + 1) % 10 == 0:
                    print(f"{turn + 1} of {turns} turns", file=sys.stderr, flush=True)
            return ObservabilityResult(pairs, *await self._scrape(http))

    async def _leave(self, parts: frozenset[str]) -> float:
        """Leave the gateway only these parts. The CPU seconds that it has used so far."""
        self.pipe.send(parts)
        return float(await asyncio.to_thread(heard, self.pipe, STOP_S))

    async def _scrape(self, http: Any) -> tuple[float, int]:
        """CPU seconds of one scrape, and the series that it returns."""
        before, text = await self._leave(NOTHING), ""
        for _ in range(SCRAPES):
            async with http.get(self.metrics_url) as answer:
                text = await answer.text()
        used = await self._leave(NOTHING) - before
        return used / SCRAPES, sum(not line.startswith("#") for line in text.splitlines())


def run_engines(pipe: Connection, settings: EnginesSettings) -> None:
    child_process.serve(played_engine.engines(settings, pipe))


def run_gateway(pipe: Connection, settings: ObservedGatewaySettings) -> None:
    child_process.serve(gateway.gateway(settings, pipe))


@contextlib.contextmanager
def _ready(target: Callable[..., None], settings: object) -> Iterator[Connection]:
    """The pipe to a child that is ready."""
    with child_process.started(target, settings) as pipe:
        heard(pipe, START_S)
        yield pipe


@contextlib.contextmanager
def _bench(folder: Path, redis_url: str) -> Iterator[ObservabilityBench]:
    port, metrics_port = free_ports(2)
    fleet, secret = Fleet.model_validate(_fleet(port, metrics_port)), secrets.token_hex(16)
    keys = {secrets.token_hex(8): tenant for tenant in TENANTS}
    played = EnginesSettings(
        redis_url=redis_url,
        secret=secret,
        pool=fleet.board_of(POOL),
        model=fleet.pools[POOL].model,
        model_folder=embedded_model(lambda fraction, step: print(f"{step} ({fraction:.0%})")),
        prompt_tokens=PROMPT_TOKENS,
        tokens=TOKENS,
        step_s=STEP_S,
    )
    settings = ObservedGatewaySettings(fleet, keys, secret, redis_url, folder)
    url = f"http://127.0.0.1:{port}"
    endpoints = [Endpoint(keys[k], url, {"authorization": f"Bearer {k}"}) for k in keys]
    with _ready(run_engines, played), _ready(run_gateway, settings) as pipe:
        yield ObservabilityBench(pipe, endpoints, f"http://127.0.0.1:{metrics_port}/metrics")


def _fleet(port: int, metrics_port: int) -> Mapping[str, Any]:
    """With all that a gateway can count, and an SLO that every request meets."""
    classes = {name: {"ttft_s": 600, "tpot_s": 60} for name in ("interactive", "batch")}
    pool = {
        "model": "bench",
        "served_model_name": MODEL,
        "slo": classes,
        "price": {"prompt": 1.0, "cached": 0.5, "output": 2.0},
    }
    return {
        "name": "bench",
        "gateway": {"port": port, "tenants": {"operator": {"operator": True}}},
        "metrics": {"port": metrics_port},
        "pools": {POOL: pool},
    }


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("observability.run", __doc__)
    parser.add_argument("--turns", type=int, default=60, help="pairs of rounds")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns must be at least 1")
    with tempfile.TemporaryDirectory(prefix="afx-bench-") as name:
        folder = Path(name)
        with own_redis.running(folder) as redis, _bench(folder, redis.url) as bench:
            found = uvloop.run(bench.measure(options.turns))
    report.finish("observability", figures(found), goals(found), seeds=[1])


if __name__ == "__main__":
    main()
