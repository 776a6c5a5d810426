"""Measure what Antefix adds to a request: make bench-overhead

One engine is called through the gateway and directly, interleaved in one run. Then the same with
engines that compute nothing, and the gateway's CPU time (`--played`: only this part; with
`--fleet`: not this part).
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.fleets.fleet import BenchFleet, running_as
from benchmarks.harness.fleets.shape_only import with_shapes_only
from benchmarks.harness.results import report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import add_fleet, parser_of
from benchmarks.overhead import gateway_cost
from benchmarks.overhead.gateway_cost import added_ms
from benchmarks.overhead.played import playing
from cli.gateway import stream_client
from cli.gateway.stream_client import Endpoint

TTFT_ROUNDS, TOKENIZE_ROUNDS, THROUGHPUT_ROUNDS = 100, 200, 3
CONCURRENCY, TOKENS = 32, 24
FLEET = Path(__file__).with_name("fleet.yaml")
ADDED_TTFT_MS_GOAL, THROUGHPUT_RATIO_GOAL = 3.0, 0.95


async def measure(fleet: BenchFleet, tokens: int) -> tuple[dict[str, float], float, float]:
    endpoints = [fleet.gateway, fleet.engine]
    prompt = "The quick brown fox jumps over the lazy dog."
    async with stream_client.session() as http:

        async def one_call(endpoint: Endpoint) -> float:
            return await stream_client.tokenize(http, endpoint, fleet.model)

        async def one_ttft(endpoint: Endpoint) -> float:
            return await stream_client.ttft(http, endpoint, fleet.model, prompt, 2)

        async def one_burst(endpoint: Endpoint) -> float:
            prompts = [f"{i} {prompt}" for i in range(CONCURRENCY)]
            return await stream_client.throughput(http, endpoint, fleet.model, prompts, tokens)

        calls = await stream_client.interleaved(endpoints, one_call, TOKENIZE_ROUNDS, warmup=20)
        ttfts = await stream_client.interleaved(endpoints, one_ttft, TTFT_ROUNDS, warmup=5)
        bursts = await stream_client.interleaved(endpoints, one_burst, THROUGHPUT_ROUNDS, warmup=1)
    ratio = statistics.median(
        gateway / direct
        for gateway, direct in zip(bursts["gateway"], bursts["direct"], strict=True)
    )
    figures = {
        "added_ms_without_model_step_p50": round(statistics.median(added_ms(calls)), 2),
        "direct_ttft_ms_p50": round(1000 * statistics.median(ttfts["direct"]), 1),
        "gateway_ttft_ms_p50": round(1000 * statistics.median(ttfts["gateway"]), 1),
        "direct_tokens_per_s": round(statistics.median(bursts["direct"]), 1),
        "gateway_tokens_per_s": round(statistics.median(bursts["gateway"]), 1),
    }
    return figures, statistics.median(added_ms(ttfts)), ratio


def real(fleet_file: Path, tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and goals with a real engine, whose answers in bursts have N tokens."""
    with (
        tempfile.TemporaryDirectory(prefix="antefix-shapes-") as shapes,
        running_as(with_shapes_only(fleet_file, Path(shapes))) as fleet,
    ):
        figures, added_ttft_ms, throughput_ratio = asyncio.run(measure(fleet, tokens))
    return figures, {
        "added_ttft_ms_p50_at_concurrency_1": report.goal(
            added_ttft_ms, at_most=ADDED_TTFT_MS_GOAL
        ),
        "streamed_throughput_ratio_at_concurrency_32": report.goal(
            throughput_ratio, at_least=THROUGHPUT_RATIO_GOAL
        ),
    }


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("overhead.run", __doc__)
    parser.add_argument("--played", action="store_true", help="only with played engines")
    parser.add_argument("--rounds", type=int, default=gateway_cost.ROUNDS, help="of CPU time")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of answers in bursts")
    add_fleet(parser)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    goals: dict[str, Any] = {}
    if not options.played:
        figures, goals = real(options.fleet or FLEET, options.tokens)
    if options.fleet is None:
        with playing() as fleet:
            cost = asyncio.run(gateway_cost.measure(fleet, options.rounds))
        figures |= {f"played_{name}": round(figure, 2) for name, figure in cost.items()}
        goals |= {f"played_{name}": goal for name, goal in gateway_cost.goals(cost).items()}
    report.finish("overhead", figures, goals, seeds=[])


if __name__ == "__main__":
    main()
