"""Answers whose engines were killed, compared with undisturbed ones. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.load.client_answers import near, texts
from benchmarks.harness.results import report
from benchmarks.resume.rounds import Disturbed

# Seconds of a gap beyond the predicted prefill.
GAP_S = 0.5


@dataclass(frozen=True)
class Survival:
    """`hit`: its engine was killed in the middle of it. `steady`: undisturbed, it was the same
    alone and among others, so it can be compared. `wrong`: differences, in words. `gap_s`: of a
    stream that was hit. `beyond_s`: that less the predicted first token of the next engine."""

    kind: str
    hit: bool
    steady: bool
    wrong: Sequence[str]
    gap_s: float | None = None
    beyond_s: float | None = None


NOT_WHOLE, TOKENS, TEXT = "not whole", "other tokens", "another text"
USAGE, INVALID = "another usage", "not valid"


def judge(one: Disturbed) -> Survival:
    request, answer = one.request, one.answer
    resumed = one.explanation.get("resumed") or {}
    kills = [at for at, replica in one.killed if replica == answer.replica and at < answer.ended]
    # an answer in one piece names the engine that ended it
    hit = bool(resumed) or (request.kind.streams and bool(kills))
    before, beside = request.undisturbed
    expected = before.whole
    steady = before.token_ids == beside.token_ids and near(expected, beside.whole)
    try:
        whole = answer.whole if answer.code is None else None
        code = answer.code
    except (ValueError, KeyError, IndexError) as error:
        whole, code = None, repr(error)
    if whole is None:
        return Survival(request.name, hit, steady, [f"{NOT_WHOLE}: {code}"])
    right = {
        TOKENS: not steady or answer.token_ids == before.token_ids,
        TEXT: not steady or near(whole["said"], expected["said"]),
        USAGE: not steady or whole["usage"] == expected["usage"],
        INVALID: _is_valid(one, whole["said"]) or not _is_valid(one, expected["said"]),
    }
    gap_s = answer.gap_s(kills[0]) if hit and request.kind.streams and kills else None
    predicted_s = resumed.get("predicted_s")
    return Survival(
        kind=request.name,
        hit=hit,
        steady=steady,
        wrong=[what for what, is_right in right.items() if not is_right],
        gap_s=gap_s,
        beyond_s=None if gap_s is None or predicted_s is None else gap_s - predicted_s,
    )


def _is_valid(one: Disturbed, said: Any) -> bool:
    """Responses have no constraint."""
    return "choices" not in said or all(map(one.request.kind.is_valid, texts(said)))


def figures(found: Sequence[Survival], resumed: Mapping[str, float]) -> dict[str, Any]:
    """`resumed`: the gateways' counts, by outcome."""
    hit = [one for one in found if one.hit]
    gaps = [one.gap_s for one in hit if one.gap_s is not None]
    return {
        "answers": len(found),
        "hit": len(hit),
        "hit_by_kind": dict(sorted(Counter(one.kind for one in hit).items())),
        "not_compared": sum(not one.steady for one in found),
        "wrong": dict(Counter(f"{one.kind}: {what}" for one in found for what in one.wrong)),
        "gap_s_p50": round(statistics.median(gaps), 3) if gaps else None,
        "gap_s_max": round(max(gaps), 3) if gaps else None,
        "gaps_judged": sum(one.beyond_s is not None for one in hit),
        "resumed": dict(resumed),
    }


def goals(found: Sequence[Survival], wanted: int) -> dict[str, Any]:
    """`wanted`: the answers that had to be hit."""
    wrong = Counter(what.partition(":")[0] for one in found for what in one.wrong)
    beyond = [one.beyond_s for one in found if one.beyond_s is not None]
    return {
        "hit": report.goal(sum(one.hit for one in found), at_least=wanted),
        **{
            name.replace(" ", "_"): report.goal(wrong[name], at_most=0)
            for name in (NOT_WHOLE, TOKENS, TEXT, USAGE, INVALID)
        },
        "gap_beyond_predicted_s": report.goal(max(beyond, default=0.0), at_most=GAP_S),
    }
