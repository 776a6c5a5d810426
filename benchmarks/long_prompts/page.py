"""docs/benchmarks/long-prompts.md; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.long_prompts.placing import CASES, LENGTHS
from benchmarks.long_prompts.prompts import ANSWERED, ASKED, FORMS, NEXT_ANSWERED, NEXT_ASKED
from benchmarks.stand import report


def page(figures: Mapping[str, float], goals: Mapping[str, Any], command: str, machine: str) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    tail = "p99" if "event_loop_late_ms_p99" in figures else "p90"
    return f"""\
# Long prompts

`{command}`:
{machine}

A gateway's own code places chats on a real Redis with 64 replicas on the board: from a request's
parsed JSON to where it goes, with rendering, tokenizing, hashing, the lookup and the ranking.
*Document*: one message has nearly all of the tokens. *Turns*: {ASKED} tokens are asked and
{ANSWERED} answered, again and again. *New*: nobody has sent it. *Next turn*: the chat was here, and
comes back with an answer of {NEXT_ANSWERED} tokens and a question of {NEXT_ASKED}. *Again*: the
same once more. CPU is the process's, all threads together.

{table(figures)}

The text is English with code, this repository's pages; the tokenizer is the embedded model's. In
the times is what else the machine does; *CPU* is less so.

While four prompts of 100,000 tokens are parsed and placed at once, one of them new, the event loop
is {figures[f"event_loop_late_ms_{tail}"]:.1f} ms late for what is due at {tail}, and
{figures["event_loop_late_ms_max"]:.1f} ms at most.

Not in that: once for each way to render, as when a pool's first replica is up or its model changes,
a gateway builds the tokenizer. That took {figures["tokenizer_built_ms"]:.0f} ms for 49,152
tokens, and takes more for more; the interpreter is locked meanwhile, so that all streams stand.

## Goals

{report.goal_table(goals, ".2f")}

A new prompt takes the tokenizer's time, in a thread that lets go of the interpreter: nobody else
waits for it, but it takes a core for so long. What is remembered, of whom and how much, is told in
[routing](../routing.md#the-prompts-tokens) and
[security](../security.md#what-runs-beside-the-requests).
"""


def table(figures: Mapping[str, float]) -> str:
    """Markdown, padded so that it reads in a terminal too."""
    rows: list[tuple[str, ...]] = [("Chat", "Tokens", "", "p50, ms", "p95, ms", "CPU, ms")]
    for form in FORMS:
        for length in LENGTHS:
            for case in CASES:
                name = f"{form}_{length}_{case.replace(' ', '_')}"
                of = (figures[f"{name}_{what}"] for what in ("ms_p50", "ms_p95", "cpu_ms_p50"))
                rows.append((form, f"{length:,}", case, *(f"{figure:.2f}" for figure in of)))
    return report.padded(rows)
