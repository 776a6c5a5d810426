"""Benchmarks of a gateway's own work. Engines are played or absent, except in overhead."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.pages.parts import Blocks, Rows, Runs, goals, met
from benchmarks.stand import report

FORMS, LENGTHS = ("document", "turns"), (1_000, 10_000, 38_000, 100_000)
OVERHEAD = {
    "added_ttft_ms_p50_at_concurrency_1": "Added to a first token, one request at a time, p50, ms",
    "played_added_ttft_ms_p50": "Added with played engines, p50, ms",
    "played_added_ttft_ms_p99": "Added with played engines, p99, ms",
    "streamed_throughput_ratio_at_concurrency_32": "Streamed tokens per second with 32 requests at"
    " once, divided by direct",
    "played_gateway_cpu_ms_per_request": "Gateway CPU per request of 500 prompt and 64 streamed"
    " tokens, ms",
    "played_gateway_cpu_ms_per_request_of_100000_prompt_tokens": "Gateway CPU per request of"
    " 100,000 prompt tokens, ms",
    "played_gateway_and_redis_cpu_ms_per_s_idle": "CPU of an idle gateway and its Redis, ms per"
    " second",
}


def index(runs: Runs) -> Blocks:
    figures, mixes = runs[-1]["figures"], ("cold", "conversation", "ladder")

    def ms(case: str) -> str:
        found = (figures.get(f"{case}_ms_{percent}") for percent in ("p50", "p99"))
        return ", ".join(f"{one:.3f}" for one in found if one is not None)

    small, large = (
        figures[f"lookup_1024_segments_{replicas}_replicas_conversation_ms_p50"]
        for replicas in (64, 1000)
    )
    yield (
        f"A lookup of 1,024 segments takes {small} ms at the median with 64 replicas, and {large}"
        f" ms with 1,000. {met(runs)}"
    )
    rows: Rows = [("p50, p99 in ms", *mixes)]
    for replicas in (64, 1000):
        for size in ("1_segment", "256_segments", "1024_segments"):
            cells = (ms(f"lookup_{size}_{replicas}_replicas_{mix}") for mix in mixes)
            rows.append((f"{size.replace('_', ' ')}, {replicas:,} replicas", *cells))
    yield report.padded(rows)
    halting = ms("lookup_1_segment_64_replicas_cold_where_cores_halt")
    yield (
        f"In ms at p50 and p99, placement takes {ms('placement_from_keys')} from segment keys and"
        f" {ms('placement_from_tokens')} from tokens. On cores that halt, a lookup of one segment"
        f" takes {halting}. A segment takes {figures['bytes_per_segment_64_replicas']} bytes of"
        f" Redis with 64 replicas and {figures['bytes_per_segment_1000_replicas']} with 1,000. One"
        f" publisher writes {figures['published_block_events_per_s']:,} KV block events a second."
    )
    yield goals(runs)


def long_prompts(runs: Runs) -> Blocks:
    figures, cases = runs[-1]["figures"], ("new", "next turn", "again")
    new, turn = (
        max(figures[f"{form}_100000_{case}_ms_p50"] for form in FORMS)
        for case in ("new", "next_turn")
    )
    yield (
        f"A gateway places the next turn of a chat of 100,000 tokens in {turn:.1f} ms at the"
        f" median. A new prompt of that length takes {new:.0f} ms. {met(runs)}"
    )
    rows: Rows = [("p50, p95 in ms", *cases)]
    for form in FORMS:
        for length in LENGTHS:
            names = (f"{form}_{length}_{case.replace(' ', '_')}" for case in cases)
            rows.append((f"{form}, {length:,} tokens", *(_p50_p95(figures, of) for of in names)))
    yield report.padded(rows)
    tail = "p99" if "event_loop_late_ms_p99" in figures else "p90"
    yield (
        "Four prompts of 100,000 tokens, one of them new, are parsed and placed at once. Meanwhile"
        f" the event loop is {figures[f'event_loop_late_ms_{tail}']:.1f} ms late at {tail} and"
        f" {figures['event_loop_late_ms_max']:.1f} ms at most. A tokenizer is built in"
        f" {figures['tokenizer_built_ms']:.0f} ms."
    )
    yield goals(runs)


def _p50_p95(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[f'{name}_ms_p50']:.2f}, {figures[f'{name}_ms_p95']:.2f}"


def observability(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    yield (
        f"Metrics, scrapes and explanations take {judged['cost_share']['figure']:.1%} of a"
        " gateway's CPU time, and keeping the tokens of answers"
        f" {judged['tokens_cost_share']['figure']:.1%}. {met(runs)}"
    )
    rows: Rows = [("What", "Cost", "95 % interval", "CPU time")]
    for name, share in figures["cost_share"].items():
        low, high = figures["cost_95_percent_sure"][name]
        us = f"{figures['cost_us_per_request'][name]} µs a request"
        rows.append((name, f"{share:.1%}", f"{low:.1%} to {high:.1%}", us))
    each = f"{figures['scrape_cpu_ms']:.1f} ms each"
    yield report.padded([*rows, ("scrapes", f"{figures['scrape_share']:.1%}", "", each)])
    yield (
        f"A streamed token takes {figures['cpu_us_per_token_without']:.1f} µs of CPU without"
        f" metrics and explanations, and {figures['cpu_us_per_token_with']:.1f} µs with them. The"
        f" gateway streams {figures['tokens_per_s_without']:,} and"
        f" {figures['tokens_per_s_with']:,} tokens a second. The endpoint has"
        f" {figures['scrape_series']} series."
    )
    yield goals(runs, form=".1%")


def overhead(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    added = judged["added_ttft_ms_p50_at_concurrency_1"]["figure"]
    yield (
        f"A gateway adds {added:.1f} ms to a first token at the median. It takes"
        f" {figures['played_gateway_cpu_ms_per_request']:.1f} ms of CPU for a request of 500 prompt"
        f" and 64 streamed tokens. {met(runs)}"
    )
    yield goals(runs, OVERHEAD)
