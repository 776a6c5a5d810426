"""What pages say of results: the answer first, and each goal that was missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from benchmarks import headlines, kept_results
from benchmarks.drills.verdict import Injury, Judgement, judge
from benchmarks.pages import engines
from benchmarks.pages.parts import goals, met
from benchmarks.stand import report, rules
from benchmarks.stand.client_answers import ClientAnswer
from tests.some import some

KEPT = kept_results.read()
WITH_TABLES = sorted(KEPT.keys() & headlines.PAGES.keys() - {"client", "cold-starts", "drills"})
FAULT = Injury(10.0, 20.0, frozenset({"hit"}))
WHOLE = ClientAnswer(9.0, 11.0, "hit")


@pytest.mark.parametrize("name", sorted(KEPT.keys() & headlines.PAGES.keys()))
def test_a_page_begins_with_an_answer_that_has_figures(name: str) -> None:
    answer, *_ = headlines.PAGES[name](KEPT[name])
    assert not answer.startswith("|") and any(letter.isdigit() for letter in answer)


@pytest.mark.parametrize("name", some(WITH_TABLES))
def test_a_page_marks_as_many_goals_as_were_missed(name: str) -> None:
    judged = KEPT[name][-1]["goals"].values()
    text = "\n".join(headlines.PAGES[name](KEPT[name]))
    assert text.count("**not met**") == sum(not goal["met"] for goal in judged)


def result(**judged: Mapping[str, Any]) -> dict[str, Any]:
    return {"figures": {}, "goals": judged}


def test_a_goal_has_the_range_of_its_seeds_and_of_all_runs() -> None:
    first = result(tail=rules.judged([1.0, 1.3, 1.4], {"at_most": 1.1}))
    last = result(tail=rules.judged([1.0, 1.2, 1.5], {"at_most": 1.1}))
    assert "| Goal   | Measured       | Wanted" in goals([first])
    row = "| `tail` | 1.2 (1 to 1.5) | 1.2 to 1.3 | at most 1.1: **not met** |"
    assert row in goals([first, last]).splitlines()
    assert met([last]) == "0 of 1 goals are met."


def test_large_figures_and_shares_are_written_in_full() -> None:
    run = result(events=report.goal(721_738.2, at_least=100_000))
    assert "| 721,738  | at least 100,000: met |" in goals([run])
    run = result(share=report.goal(0.0513, at_most=0.02))
    assert "| 5.1%     | at most 2%: **not met** |" in goals([run], form=".1%")


def chaos_tests(*runs: Sequence[Any]) -> list[str]:
    """The blocks of a page, from the judgements of each run."""
    figures = [{one.name: one.figures() for one in of} for of in runs]
    wrong = sum(not one.is_right for of in runs for one in of)
    of = {"drills_that_went_wrong": report.goal(wrong, at_most=0)}
    return list(engines.drills([{"figures": {"runs": figures}, "goals": of}]))


def test_the_page_of_chaos_tests_adds_up_all_runs() -> None:
    skipped = Judgement("cut-off", skipped="it takes root: run it as root")
    refused = ClientAnswer(9.0, 11.0, "hit", "engine_unavailable")
    right = judge("killed", [WHOLE, refused], FAULT, 21.5, {"slots": 0})
    wrong = judge("killed", [WHOLE], FAULT, 20.2, {"slots": 1})
    answer, table = chaos_tests([right, skipped], [wrong, skipped])
    assert answer == "Of 4 chaos tests in 2 runs, 3 ended as expected."
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    killed = ["`killed`", "3", "3", "2", "1 `engine_unavailable`", "0.0", "1.5"]
    assert cells[2][:7] == killed and cells[2][7].startswith("1/2: left over: {")
    assert cells[3] == ["`cut-off`", *[""] * 6, "skipped: it takes root: run it as root"]


def test_the_page_of_chaos_tests_has_those_without_an_end() -> None:
    answer, table = chaos_tests(
        [Judgement("killed", ["the fleet is whole again: not within 150 s"])]
    )
    assert answer == "Of 1 chaos tests in 1 runs, 0 ended as expected."
    assert "| 0/1: the fleet is whole again: not within 150 s |" in table


def test_the_page_of_chaos_tests_has_the_times_of_updates() -> None:
    updates = [
        Injury(
            *(10.0, 20.0),
            planned=True,
            measured={"fewest_serving": of, "took_s": 81.6, "one_start_s": 27.2},
        )
        for of in (3, 2)
    ]
    *_, said = chaos_tests(*([judge("update", [WHOLE], of, 21.0, {})] for of in updates))
    assert "at least 2 served" in said and "82 s (27 s), 82 s (27 s)" in said
    assert len(chaos_tests([Judgement("update", skipped="no")])) == 2


def test_the_page_of_a_spike_compares_both_fleets() -> None:
    warm = {"slo_held_in_the_spike": 0.9, "ttft_p99_s": 1.5, "promotion_first_token_s": 0.7}
    without = {"slo_held_in_the_spike": 0.5, "ttft_p90_s": 9.0, "promotion_first_token_s": None}
    figures = {"requests_per_s_of_one_engine": 1.7, "with a warm replica": warm}
    answer, table = engines.spike([{"figures": {**figures, "without": without}, "goals": {}}])
    assert answer.startswith("With a warm replica, 90% of the requests")
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    assert ["ttft p99 s", "1.5", ""] in rows and ["ttft p90 s", "", "9.0"] in rows
    assert ["promotion first token s", "0.7", ""] in rows


def test_the_page_of_weights_names_the_scheme_that_loses_least() -> None:
    def of(kl: float) -> dict[str, Any]:
        one = {"value": 0.5, "low": 0.4, "high": 0.6}
        return {
            "group_size": 64,
            "bytes_ratio": 0.42,
            "seconds": 9.0,
            "tokens": 4088,
            **dict.fromkeys(("perplexity", "reference_perplexity", "top_1_agreement"), one),
            "kl": {**one, "value": kl},
            "rates": {"concurrency": 8, "prefill": one, "decode": one, "concurrent_decode": one},
            "answers": {"max_tokens": 64, "prompts": 16, "equal": one, "common_prefix": one},
        }

    tried = {"name": "ngram, k=2", "acceptance_rate": None, "tokens_per_pass": 1.0}
    speedup = {"equal_answers": 1.0, "speedup": {"mean": 1.0, "low": 0.9, "high": 1.1}}
    figures = {
        "schemes": {"rtn": of(0.4), "awq": of(0.1)},
        "speculation": {
            "recommended": None,
            "concurrency": 1,
            "prompts": 8,
            "max_tokens": 48,
            "measured": [{**tried, **speedup}],
        },
        "ruined": {"kl": {"value": 3.7, "low": 3.5, "high": 4.0}, "exit_code": 7},
        "kv_tokens": {"planned": 23_296, "engine": 23_296},
    }
    answer, *blocks = engines.weights([{"figures": figures, "goals": {}}])
    assert answer.startswith("`awq` loses least: a mean KL of 0.100 nats")
    assert any("| 1.00 (0.90 to 1.10) |" in block for block in blocks)
