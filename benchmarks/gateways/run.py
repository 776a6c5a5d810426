"""Many gateways over one index: make bench-gateways ARGS=--write

1, 2, 4 and 8 gateway processes place the same traffic, request by request on a random one of
them; then 8 that share no index, where each knows of prefixes only what it placed itself. The
engines are simulated, all in one process (simulator/engines.py); Redis, the engines'
publishers and the gateways' schedulers are real. Every run has engines and gateways of its own.

`bench-scale` plays larger fleets, in virtual time. It assumes how soon gateways hear of each other
and leaves out leases; here gateways are processes, and all of that takes the time it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.gateways import engine_host, gateway_process, page
from benchmarks.gateways.engine_host import HostReport, HostSettings
from benchmarks.gateways.gateway_process import GatewayProcessSettings
from benchmarks.gateways.results import (
    GatewayReport,
    GatewaysRun,
    GatewaysSummary,
    ceiling,
    figures,
    goals,
    index_of,
    summary,
    table,
)
from benchmarks.stand import child_process, own_redis, report
from benchmarks.stand.arrivals import Arrival, conversations, from_trace
from benchmarks.stand.child_process import START_S, STOP_S, heard
from benchmarks.stand.ending import stopped_in_the_end
from benchmarks.stand.options import add_write, parser_of
from benchmarks.stand.public_data import CONVERSATION_TRACE, find
from common.errors import Problem
from common.percentiles import Tail
from simulator.engines import Hardware

GATEWAYS = (1, 2, 4, 8)
SEGMENT_TOKENS = 128
# From "ready" to the first request.
SETTLE_S = 0.5
# Later than this, and it is the machine that was measured.
LATE_S = 0.02


@dataclass(frozen=True)
class GatewaysBench:
    """What all runs have in common. `warm_up` and `seconds` (measured) are seconds."""

    redis_url: str
    folder: Path
    arrivals: Sequence[Arrival]
    replicas: int
    warm_up: float
    seconds: float
    budget_s: float
    hardware: Hardware = field(default_factory=Hardware)

    def run(self, gateways: int, shared: bool) -> GatewaysRun:
        name = f"bench/{gateways}-{'shared' if shared else 'own'}"
        socket, key = str(self.folder / f"{gateways}{shared}.sock"), secrets.token_bytes(32)
        hosted = HostSettings(
            self.redis_url, name, socket, key, self.replicas, SEGMENT_TOKENS, self.hardware
        )
        placing = GatewayProcessSettings(
            self.redis_url, name, socket, key, self.replicas, shared, self.budget_s
        )
        with child_process.started(run_host, hosted) as engines:
            heard(engines, START_S)
            with contextlib.ExitStack() as processes:
                pipes = [
                    processes.enter_context(
                        child_process.started(
                            run_gateway, placing, _share(self.arrivals, number, gateways)
                        )
                    )
                    for number in range(gateways)
                ]
                reports = self._play(pipes)
            engines.send("enough")
            told: HostReport = heard(engines, STOP_S)
        return GatewaysRun(
            gateways=gateways,
            shared=shared,
            replicas=self.replicas,
            since=self.warm_up,
            until=self.warm_up + self.seconds,
            ceiling=ceiling(self.arrivals, self.warm_up, self.hardware.block_tokens),
            reports=tuple(reports),
            engines_late=Tail.of(told.late_s),
            engines_cpu_s=told.cpu_s,
        )

    def _play(self, gateways: Sequence[Connection]) -> list[GatewayReport]:
        for pipe in gateways:
            heard(pipe, START_S)
        start = time.monotonic() + SETTLE_S
        for pipe in gateways:
            pipe.send(start)
        limit = start + self.warm_up + self.seconds + gateway_process.GRACE_S + STOP_S
        return [heard(pipe, limit - time.monotonic()) for pipe in gateways]


def run_host(pipe: Connection, settings: HostSettings) -> None:
    child_process.serve(engine_host.host(settings, pipe))


def run_gateway(
    pipe: Connection, settings: GatewayProcessSettings, arrivals: Sequence[Arrival]
) -> None:
    child_process.serve(gateway_process.gateway(settings, arrivals, pipe))


def _share(arrivals: Sequence[Arrival], number: int, gateways: int) -> list[Arrival]:
    return [arrival for arrival in arrivals if int(arrival.gateway * gateways) == number]


def measure(options: argparse.Namespace) -> list[GatewaysSummary]:
    seconds = options.warm_up + options.seconds
    arrivals = (
        from_trace(find(CONVERSATION_TRACE), options.seed, options.rate, seconds)
        if options.trace
        else conversations(options.seed, options.rate, seconds)
    )
    runs = [(gateways, True) for gateways in options.gateways]
    runs.append((max(options.gateways), False))
    found = []
    with tempfile.TemporaryDirectory(prefix="afx-bench-") as name:
        folder = Path(name)
        with own_redis.running(folder) as server:
            bench = GatewaysBench(
                redis_url=server.url,
                folder=folder,
                arrivals=arrivals,
                replicas=options.replicas,
                warm_up=options.warm_up,
                seconds=options.seconds,
                budget_s=options.budget_ms / 1000,
            )
            for gateways, shared in runs:
                found.append(summary(bench.run(gateways, shared)))
                _tell(found[-1])
    return found


def _tell(s: GatewaysSummary) -> None:
    print(
        f"{s.gateways} gateways, index: {index_of(s)}: cached {s.cached_ratio:.3f},"
        f" variation of load {s.variation_requests:.3f}, TTFT mean {1000 * s.ttft_mean:.0f} ms",
        flush=True,
    )
    if max(s.late.value, s.engines_late.value) > LATE_S:
        print("this machine was too busy for that run to mean much", file=sys.stderr)


@stopped_in_the_end()
def main() -> None:
    options = _options()
    began = time.monotonic()
    try:
        found = measure(options)
    except Problem as error:
        sys.exit(f"There is no trace to play: {error}.")
    judged = goals(found)
    print("\n" + table(found) + "\n")
    if options.write:
        minutes = (time.monotonic() - began) / 60
        command = report.command("gateways")
        text = page.page(
            found,
            judged,
            command,
            minutes,
            options.replicas,
            options.budget_ms,
            report.machine_in_words(),
        )
        (report.PAGES / "gateways.md").write_text(text)
        page.draw(found, report.PAGES / "gateways.svg")
    report.finish("gateways", figures(found), judged, seeds=[options.seed])


def _options() -> argparse.Namespace:
    parser = parser_of("gateways.run", __doc__)
    parser.add_argument("--gateways", type=int, nargs="+", default=GATEWAYS, metavar="N")
    parser.add_argument("--replicas", type=int, default=8, help="simulated engines")
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second, in all")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each run")
    parser.add_argument("--warm-up", type=float, default=12.0, help="seconds before these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="of the Mooncake trace's shape")
    parser.add_argument("--budget-ms", type=float, default=50.0, help="what a lookup may take")
    add_write(parser, "gateways.{md,svg}")
    options = parser.parse_args()
    if min(options.gateways) < 1 or options.replicas < 1:
        parser.error("--gateways and --replicas must be at least 1")
    if min(options.rate, options.seconds) <= 0 or options.warm_up < 0:
        parser.error("--rate and --seconds must be above 0")
    return options


if __name__ == "__main__":
    main()
