"""Does an engine that resumes an answer generate the same tokens as the first engine?

One engine of the pool is tested, on the machine that will serve: `antefix prove-resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deployments.offline.offline_engine import CutCounts, MadeBy, OfflineEngine, Tokens

PROMPTS, ANSWER_TOKENS, CUTS = 16, 64, (1, 7, 20, 41, 63)
# Lengths of prompts, in tokens: shorter and longer than a block of a KV cache.
LENGTHS = (5, 12, 31, 64, 90, 150)
TEXT = (
    "A river begins as rain. It gathers in hollows, finds the lowest stone and goes on from there. "
    "Towns were built where it could be crossed, mills where it fell, harbours where it met the "
    "sea. In spring it carries the mountains away, a grain at a time, and lays them down again as "
    "fields. Whoever lives beside it learns to read its colour: green is calm, brown is coming, "
    "white is too late. def level(readings): return sum(readings) / len(readings) if readings else "
    "0.0. The table lists 14 gauges, 3 of them broken; the mean of the others was 2.75 metres. "
)


@dataclass(frozen=True)
class Proof:
    """Results by `kind`, of `engine`."""

    engine: MadeBy
    kinds: Mapping[str, CutCounts]

    @property
    def cuts(self) -> int:
        return sum(found.cuts for found in self.kinds.values())

    @property
    def other(self) -> int:
        return sum(found.other for found in self.kinds.values())

    @property
    def is_exact(self) -> bool:
        """Whether every resumed answer had the same tokens as the uninterrupted one."""
        return self.cuts > 0 and not self.other


def prompts_of(tokens: Tokens, most: int) -> list[Tokens]:
    """Return PROMPTS windows of the text's `tokens`, each of at most `most` tokens."""
    lengths = [min(LENGTHS[i % len(LENGTHS)], most) for i in range(PROMPTS)]
    long = tokens * (-(-(max(lengths) + PROMPTS) // len(tokens)))
    return [long[i : i + length] for i, length in enumerate(lengths)]


def prove(
    start: Callable[[], OfflineEngine],
    show: Callable[[str, float | None], None],
    answer_tokens: int = ANSWER_TOKENS,
) -> Proof:
    """Run the test. `show` gets the current step and the done fraction, 0 to 1.

    Answers are interrupted at those of CUTS that are within `answer_tokens`. Raises Problem if the
    engine cannot be loaded, or fails.
    """
    show("loading", None)
    with start() as engine:
        room = engine.loaded.max_context - answer_tokens
        cuts = [cut for cut in CUTS if cut < answer_tokens]
        (text,) = engine.tokens([TEXT])
        prompts = prompts_of(text, max(1, room))
        found: dict[str, CutCounts] = {}
        kinds = engine.kinds_of_answers()
        for number, kind in enumerate(kinds):
            show(kind, number / len(kinds))
            found[kind] = engine.cut_answers(kind, prompts, max_tokens=answer_tokens, cuts=cuts)
        return Proof(engine.made_by(), found)
