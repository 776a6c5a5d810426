"""What is offered three times over is the knee of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.load import offered_load
from benchmarks.harness.load.offered_load import PHASE_S, Phase
from benchmarks.harness.load.trace_player import ReplayedRequest
from benchmarks.harness.results.kept_parts import KeptParts
from benchmarks.overload import run
from benchmarks.overload.run import RULE, summary
from tests.benchmarks.harness.load.offered import FLEET, serving


def phase(rate: float, held: int, late: int = 0, refused: int = 0, recovered_s: float = 0) -> Phase:
    outcomes = [
        *[ReplayedRequest(0.0, 200, ttft=1.0)] * held,
        *[ReplayedRequest(0.0, 200, ttft=6.5)] * late,
        *[ReplayedRequest(0.0, 429, retry_after="3")] * refused,
    ]
    return Phase(rate, tuple(outcomes), recovered_s)


def test_a_fleet_that_serves_less_beyond_its_knee_misses_the_goal() -> None:
    pairs = [(phase(4.0, 240), phase(12.0, held, refused=400)) for held in (230, 200, 250)]
    figures, goals = summary(pairs, slo_s=5.0)
    goodput = goals["goodput_of_that_at_the_knee"]
    assert (goodput["figure"], goodput["met"]) == (pytest.approx(230 / 240, abs=1e-4), False)
    assert figures["offered_requests_per_s"] == [12.0] * 3
    assert figures["goodput_per_s"][0] == round(230 / PHASE_S, 3)


def test_one_fast_seed_does_not_meet_the_tail_goal() -> None:
    slow, fast = phase(12.0, 100, late=20), phase(12.0, 120)
    _, goals = summary([(phase(4.0, 100), over) for over in (slow, slow, fast)], slo_s=5.0)
    assert not goals["tail_ttft_of_the_slo"]["met"]
    assert goals["tail_ttft_of_the_slo"]["range"] == [0.2, 1.3]


def test_an_answer_with_status_500_misses_the_goal() -> None:
    broken = Phase(12.0, (ReplayedRequest(0.0, 500), ReplayedRequest(0.0, 200, ttft=1.0)), 0.0)
    _, goals = summary([(phase(4.0, 1), broken)], slo_s=5.0)
    assert not goals["answers_that_are_neither_success_nor_429_with_retry_after"]["met"]


async def test_an_interrupted_run_resumes_after_the_last_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PHASE_S", "PROBES_S"):
        monkeypatch.setattr(offered_load, name, 0.1)
    monkeypatch.setattr(offered_load, "STEP_S", 20.0)
    played = serving(monkeypatch, lambda rate, _: rate < 4.0)
    kept = KeptParts(tmp_path / "kept", "overload", RULE)
    pairs = await run.measure(FLEET, 5.0, kept)
    assert len(pairs) == len(RULE.reported)
    played.clear()
    again = await run.measure(FLEET, 5.0, KeptParts(tmp_path / "kept", "overload", RULE))
    assert again == pairs
    assert "step" not in {name for name, _ in played}


def test_a_late_load_generator_is_noted_in_the_result() -> None:
    late = Phase(4.0, (ReplayedRequest(0.0, 200, ttft=1.0, sent_late=0.5),), 0.0)
    figures, _ = summary([(late, late)], slo_s=5.0)
    assert "the load generator was late" in figures["note"]
