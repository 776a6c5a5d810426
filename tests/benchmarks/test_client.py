"""Both clients' figures side by side, from rounds whose figures are known."""

from __future__ import annotations

from benchmarks.client.run import FIGURES, NAMES, Measured, goals, medians


def measured(ms: float) -> Measured:
    return {name: dict.fromkeys(FIGURES, ms) for name in NAMES}


FOUND = {
    "antefix bench": [measured(ms) for ms in (100.0, 103.0, 900.0)],
    "vllm bench serve": [measured(ms) for ms in (100.0, 99.0, 50.0)],
}


def test_a_disturbed_round_does_not_decide_the_median() -> None:
    assert medians(FOUND["antefix bench"])["ttft"] == dict.fromkeys(FIGURES, 103.0)
    goal = goals(FOUND)["ttft_p50_off"]
    assert (goal["figure"], goal["met"]) == (0.0404, True)
