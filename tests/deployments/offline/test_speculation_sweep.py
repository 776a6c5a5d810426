"""The results of an arm's runs: speedups, acceptance and what the formula predicts."""

from dataclasses import replace
from typing import Any

import pytest

from deployments.offline.offline_engine import Generated
from deployments.offline.speculation_sweep import MeasuredArm, Way, with_acceptance
from weights.speculation.draft_yield import recommend

# 100 tokens in 10 s without speculation
WITHOUT = Generated([[1, 2], [3, 4]], 10.0, 100, 0.1, 0.1, 10.0, 0, 0, 0)


def drafting(seconds: float, drafts: int, drafted: int, accepted: int) -> Generated:
    return replace(WITHOUT, seconds=seconds, drafts=drafts, drafted=drafted, accepted=accepted)


def arm(drafted: int, *runs: Generated) -> MeasuredArm:
    without = (WITHOUT,) * len(runs)
    return MeasuredArm("ngram", {"num_speculative_tokens": drafted}, drafted, runs, without)


# Each guess is right in half of the cases: 1.5 tokens a draft of one, 1.875 of three.
ONE = arm(1, *[drafting(8.0, 40, 40, 20)] * 2)
THREE = arm(3, *[drafting(5.0, 40, 120, 35)] * 2)


def test_a_speedup_is_of_rates_round_by_round() -> None:
    uneven = arm(1, drafting(5.0, 1, 1, 1), drafting(20.0, 1, 1, 1))
    assert uneven.candidate.speedups == (2.0, 0.5)
    assert ONE.tokens_per_s == pytest.approx(12.5)


def test_the_shortest_draft_predicts_the_yield_of_longer_ones() -> None:
    one, three = with_acceptance([arm(0, WITHOUT, WITHOUT), ONE, THREE])[1:]
    assert one.expected_per_draft is None
    assert three.acceptance == pytest.approx(0.5)
    assert three.expected_per_draft == pytest.approx(1.875)
    assert three.tokens_per_draft == pytest.approx(1.875)


def test_passes_without_a_draft_count_in_the_tokens_per_pass() -> None:
    # 100 tokens, 20 of them for nothing
    assert ONE.tokens_per_pass == pytest.approx(1.25)
    assert ONE.acceptance_rate == 0.5


def test_a_setting_without_drafts_has_no_acceptance_rate() -> None:
    off = with_acceptance([arm(0, WITHOUT, WITHOUT)])[0]
    assert (off.acceptance_rate, off.tokens_per_draft, off.expected_per_draft) == (None,) * 3
    assert off.tokens_per_pass == 1.0


def test_an_answer_that_differs_in_one_token_is_not_equal() -> None:
    other = replace(WITHOUT, outputs=[[1, 2], [3, 5]])
    assert arm(2, other, other).equal_answers == 0.5


def test_the_faster_setting_is_recommended() -> None:
    assert recommend([ONE.candidate, THREE.candidate]).best == THREE.candidate


def test_an_engine_that_can_switch_drafts_is_measured_without_them_too() -> None:
    assert Way("ngram", {"method": "ngram"}, (2, 4)).arms == (0, 2, 4)


@pytest.mark.parametrize(
    "config",
    [
        {"method": "suffix"},
        {"method": "ngram_gpu"},
        {"method": "eagle3", "parallel_drafting": True},
        {"model": "a/b"},
    ],
)
def test_a_draft_that_cannot_be_shortened_has_an_engine_for_every_length(
    config: dict[str, Any],
) -> None:
    engines = Way("way", config, (2, 4)).engines(False, "V1")
    assert [engine.arms for engine in engines] == [(2,), (4,)]


def test_a_confirmation_runs_only_the_setting_that_will_be_served() -> None:
    assert Way("ngram", {"method": "ngram"}, (4,), as_written=True).arms == (4,)


def test_exact_mode_gives_every_draft_length_a_separate_engine() -> None:
    way = Way("ngram", {"method": "ngram"}, (2, 4))
    assert [engine.arms for engine in way.engines(True, "V1")] == [(2,), (4,)]
    assert way.engines(False, "V2") == [way]
    mtp = Way("mtp", {"method": "deepseek_mtp"}, (1, 2))
    assert mtp.engines(False, "V2") == [mtp]


def test_ngram_gpu_is_shortened_while_an_engine_runs_under_model_runner_v2() -> None:
    way = Way("ngram_gpu", {"method": "ngram_gpu"}, (2, 4))
    assert way.engines(False, "V2") == [way]


def test_a_draft_model_has_an_engine_for_every_length_under_model_runner_v2() -> None:
    way = Way("draft", {"method": "draft_model", "model": "a/b"}, (2, 4))
    assert [engine.arms for engine in way.engines(False, "V2")] == [(2,), (4,)]
    assert way.engines(False, "V1") == [way]
