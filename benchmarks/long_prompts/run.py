"""Measure what long prompts cost a gateway: make bench-long-prompts

A gateway's own code places chats of 1,000 to 100,000 tokens with a real Redis, in uvloop: as new
chats, as the next turn of a known one, and again. Then four of the longest are placed at once, and
the delay of the event loop is measured. Two more times are measured: to count a known chat's
tokens, and to build a tokenizer, which a gateway does once for each way to render.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.fleets.played_engine import facts_of
from benchmarks.harness.results import report
from benchmarks.harness.results.options import parser_of
from benchmarks.long_prompts.placing import LENGTHS, NEXT_TURN, Placer, Seconds
from benchmarks.long_prompts.prompts import FORMS, Chats
from common.percentiles import Tail, percentile
from deployments.gateway.intake.long_prompts import LONG_PROMPTS
from deployments.models.model import embedded_model
from deployments.prompt import PromptTokens

ROUNDS, WATCHED_ROUNDS = 100, 20
LONG, MIDDLE = LENGTHS[-1], LENGTHS[-2]


def percentile_ms(seconds: Sequence[float], percent: int) -> float:
    return 1000 * percentile(seconds, percent)


def figures_of(found: Seconds, late_s: Sequence[float], built_s: float) -> dict[str, float]:
    """Milliseconds by name."""
    figures = {}
    for (form, length, case), seconds in found.items():
        for percent in (50, 95):
            name = f"{form}_{length}_{case.replace(' ', '_')}_ms_p{percent}"
            figures[name] = percentile_ms(seconds, percent)
    tail = Tail.of(late_s)
    figures[f"event_loop_late_ms_{tail.name}"] = 1000 * tail.value
    figures["event_loop_late_ms_max"] = 1000 * max(late_s)
    figures["tokenizer_built_ms"] = 1000 * built_s
    return {name: round(figure, 3) for name, figure in figures.items()}


def goals_of(found: Seconds, late_s: Sequence[float], count_s: Sequence[float]) -> dict[str, Any]:
    """Each is of the slower form."""

    def worst(length: int, percent: int) -> float:
        return max(percentile_ms(found[form, length, NEXT_TURN], percent) for form in FORMS)

    return {
        "next_turn_of_100000_tokens_ms_p50": report.goal(worst(LONG, 50), at_most=3),
        "next_turn_of_100000_tokens_ms_p95": report.goal(worst(LONG, 95), at_most=7),
        "next_turn_of_38000_tokens_ms_p50": report.goal(worst(MIDDLE, 50), at_most=5),
        "event_loop_late_ms_max": report.goal(1000 * max(late_s), at_most=5),
        "count_of_100000_tokens_ms_p50": report.goal(percentile_ms(count_s, 50), at_most=3),
    }


async def measure(url: str, prompts: PromptTokens) -> tuple[Seconds, list[float], list[float]]:
    chats = Chats(prompts)
    async with AsyncExitStack() as stack:
        placer = Placer(url, prompts, stack)
        found = await placer.measure(chats, ROUNDS)
        late_s = await placer.hold_up(chats, WATCHED_ROUNDS)
        return found, late_s, await placer.count(chats, ROUNDS)


def main() -> None:
    parser_of("long_prompts.run", __doc__).parse_args()
    facts, began = facts_of(embedded_model(lambda fraction, step: None)), time.thread_time()
    prompts, built_s = PromptTokens(facts, LONG_PROMPTS.elsewhere), time.thread_time() - began
    with own_redis.unbounded() as url:
        found, late_s, count_s = uvloop.run(measure(url, prompts))
    figures, goals = figures_of(found, late_s, built_s), goals_of(found, late_s, count_s)
    report.finish("long-prompts", figures, goals, seeds=[1])


if __name__ == "__main__":
    main()
