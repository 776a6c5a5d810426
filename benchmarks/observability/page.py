"""docs/benchmarks/observability.md; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.observability.results import (
    BOTH,
    SCRAPE_PERIOD_S,
    ObservabilityResult,
    table,
    tokens_per_s,
    us_per_token,
)


def page(
    found: ObservabilityResult, goals: Mapping[str, Any], command: str, minutes: float, machine: str
) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    both = found.of(BOTH)
    without, there = [pair.without for pair in both], [pair.there for pair in both]
    goal, of_tokens = goals["cost_share"], goals["tokens_cost_share"]
    met = "met" if goal["met"] else "**not met**"
    met_by_tokens = "met" if of_tokens["met"] else "**not met**"
    requests = sum(pair.without.requests + pair.there.requests for pair in found.pairs)
    return f"""\
# What metrics and explanations cost

`{command}`: {minutes:.0f} minutes,
{machine}

One gateway process serves chats of 32 clients, with prompts of 500 tokens and streams of 64, from
two simulated engines in another process: {requests:,} requests in {len(found.pairs)} pairs of
rounds, one round without the parts in question and one with them. What is compared is the CPU time
of the gateway's process per token, since that is what bounds a gateway. Costs are medians over the
pairs.

{table(found)}

**Goal**: metrics, scrapes included, and explanations take at most {goal["at_most"]:.0%}. Measured:
{goal["figure"]:.1%}, {met}. The tokens of answers take at most {of_tokens["at_most"]:.0%}.
Measured: {of_tokens["figure"]:.1%}, {met_by_tokens}.

| | Without both | With both |
| -- | -- | -- |
| CPU time a token | {us_per_token(without):.1f} µs | {us_per_token(there):.1f} µs |
| Streamed tokens a second | {tokens_per_s(without):,.0f} | {tokens_per_s(there):,.0f} |

## How to read this

- **Metrics**: all that is counted of a request, of its routing and its admission, the times between
  the pieces of its stream, and the gauges, once a second; in memory-mapped files, as on a node.
- **Explanations**: made and written to Redis, twice, since one tenant is an operator.
- **Log**: the line that each request has in the gateway's log. It is no part of the goal.
- **Tokens**: each token's id comes beside its event, is taken out and kept, so that another engine
  can go on with the answer should this one be lost. It is no part of the first goal.
- **Scrapes**: CPU time of a scrape of the node's endpoint ({found.scrapes.series} series), as a
  share of one core, one every {SCRAPE_PERIOD_S:g} s. It does not depend on traffic.
- **A/A**: both rounds of a pair are without any part. A cost within its range is no cost that this
  run could show.
- A single pair of rounds tells nothing: on these cores the same work takes up to a tenth more or
  less CPU time from one second to the next. *95 % sure*: what the median may be.
"""
