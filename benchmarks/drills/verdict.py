"""Whether a chaos test ended as expected. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.drills.traffic import is_cut
from benchmarks.harness.load.client_answers import ClientAnswer

# Until a request that was hit is resumed, or gets an error.
TOLD_WITHIN_S = 5.0
WHOLE_WITHIN_S = 30.0
# Errors that clients may get of a fleet that has lost a part.
OURS = frozenset(
    {"engine_unavailable", "engines_lost", "no_replica", "over_capacity", "engine_error"}
)


@dataclass(frozen=True)
class Injury:
    """A fault. `began` and `over`, when the process was back, in seconds of the loop's clock. It
    may hit requests at one of `replicas`, or all in progress if `gateway`. A `planned` one costs
    no answer. `wrong`: other deviations, in words."""

    began: float
    over: float
    replicas: frozenset[str] = frozenset()
    gateway: bool = False
    planned: bool = False
    wrong: Sequence[str] = ()
    measured: Mapping[str, float] = field(default_factory=dict)

    def hits(self, outcome: ClientAnswer) -> bool:
        if outcome.began >= self.over or outcome.ended <= self.began:
            return False
        return self.gateway or outcome.replica in self.replicas


@dataclass(frozen=True)
class Judgement:
    """`wrong`: deviations, in words. `skipped`: why the test cannot run here. `seen`: figures."""

    name: str
    wrong: Sequence[str] = ()
    skipped: str = ""
    seen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return not self.wrong

    def row(self) -> str:
        if self.skipped:
            return f"{self.name}: skipped: {self.skipped}"
        figures = "".join(f"{name} {figure}, " for name, figure in self.seen.items())
        return f"{self.name}: {figures}{'; '.join(self.wrong) or 'as it should be'}"

    def figures(self) -> dict[str, Any]:
        if self.skipped:
            return {"skipped": self.skipped}
        return {**self.seen, "wrong": list(self.wrong)}


def judge(
    name: str,
    outcomes: Sequence[ClientAnswer],
    fault: Injury,
    whole_at: float,
    left_over: Mapping[str, int],
) -> Judgement:
    """`whole_at`: when the whole fleet served again."""
    hit = [one for one in outcomes if fault.hits(one)]
    failed = [one for one in outcomes if one.code is not None]
    lost = [one for one in failed if fault.hits(one)]
    wrong = [*fault.wrong]
    if not outcomes:
        wrong.append("nothing was asked")
    if outside := [one for one in failed if one not in lost]:
        wrong.append(f"failed though not hit: {_counted(outside)}")
    if fault.planned and lost:
        wrong.append(f"failed though it was planned: {_counted(lost)}")
    if dumb := [one for one in lost if not _was_told(one, fault)]:
        wrong.append(f"hit and got no Antefix error: {_counted(dumb)}")
    if late := [one for one in lost if one.ended > _until(one, fault)]:
        seconds = max(one.ended - max(one.began, fault.began) for one in late)
        wrong.append(f"{len(late)} got an error only after up to {seconds:.1f} s")
    if whole_at - fault.over > WHOLE_WITHIN_S:
        wrong.append(f"whole again only {whole_at - fault.over:.1f} s after the process was back")
    if left := {what: number for what, number in left_over.items() if number}:
        wrong.append(f"left over: {left}")
    told = Counter(one.code for one in failed if one.code is not None)
    seen = {
        "requests": len(outcomes),
        "hit": len(hit),
        "went_on": sum(one.code is None for one in hit),
        "told": dict(told),
        "longest_gap_s": round(max((one.gap_s(0.0) for one in outcomes), default=0.0), 2),
        "whole_after_s": round(max(0.0, whole_at - fault.over), 2),
        "left_over": dict(left_over),
        **fault.measured,
    }
    return Judgement(name, wrong, seen=seen)


def _was_told(one: ClientAnswer, fault: Injury) -> bool:
    """A dead gateway cannot answer: its connections break."""
    return one.code in OURS or (fault.gateway and is_cut(one))


def _until(one: ClientAnswer, fault: Injury) -> float:
    return max(one.began, fault.began) + TOLD_WITHIN_S


def _counted(outcomes: Sequence[ClientAnswer]) -> str:
    return ", ".join(f"{n} {code}" for code, n in Counter(o.code for o in outcomes).items())
