"""What pages say of results: the answer first, and each goal that was missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from benchmarks import headlines, kept_results
from benchmarks.drills.verdict import Injury, Judgement, judge
from benchmarks.harness.load.client_answers import ClientAnswer
from benchmarks.harness.results import report, rules
from benchmarks.pages import chosen, drills
from benchmarks.pages.figures import tables
from benchmarks.pages.parts import goals, met
from tests.some import some

KEPT = kept_results.read()
WITH_TABLES = sorted(KEPT.keys() & headlines.PAGES.keys() - {"drills"})
FAULT = Injury(10.0, 20.0, frozenset({"hit"}))
WHOLE = ClientAnswer(9.0, 11.0, "hit")


@pytest.mark.parametrize("name", sorted(KEPT.keys() & headlines.PAGES.keys()))
def test_a_page_starts_with_a_summary_that_has_figures(name: str) -> None:
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


def test_a_goal_names_what_it_is_compared_with() -> None:
    misses = {**report.goal(0.2, at_most=0.1), "peer": "hpa-concurrency:1"}
    table = goals([result(misses=misses, failed=report.goal(0, at_most=0))])
    head, _, compared, other = table.splitlines()
    assert head.endswith("| Compared with       |")
    assert compared.endswith("| `hpa-concurrency:1` |") and other.endswith(
        "|                     |"
    )


def test_a_figure_is_not_rounded_to_a_bound_that_it_misses() -> None:
    run = result(uncached=report.goal(1.0002, at_most=1.0))
    assert "| 1.0002   | at most 1: **not met** |" in goals([run])


def test_large_figures_are_written_in_full() -> None:
    run = result(events=report.goal(721_738.2, at_least=100_000))
    assert "| 721,738  | at least 100,000: met |" in goals([run])


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table, without the line below its head."""
    head, _, *rows = table.splitlines()
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in (head, *rows)]


def test_parts_with_the_same_figures_are_compared_in_one_table() -> None:
    warm = {"ttft_s": 1.5, "promotion_s": 0.7, "requests": 1600}
    (table,) = tables({"warm": warm, "without": {"ttft_s": 9.0, "requests": 1600}})
    assert rows_of(table) == [
        ["", "ttft s", "promotion s", "requests"],
        ["warm", "1.5", "0.7", "1,600"],
        ["without", "9", "", "1,600"],
    ]


def test_a_wide_table_has_the_figures_as_rows() -> None:
    wide = {f"figure_{number}": number for number in range(9)}
    (table,) = tables({"one": wide, "other": wide})
    assert rows_of(table)[:2] == [["", "one", "other"], ["figure 0", "0", "0"]]


def test_the_other_figures_are_in_a_table_of_percentiles_and_one_of_the_rest() -> None:
    percentiles, rest = tables(
        {
            "wait_ms_p50": 1.0,
            "wait_ms_p99": 2.0,
            "knees": [9.31, 7.4],
            "tail": None,
            "cpu": {"s": 3},
        }
    )
    assert rows_of(percentiles) == [["", "p50", "p99"], ["wait ms", "1", "2"]]
    assert rows_of(rest)[1:] == [["knees", "9.31, 7.4"], ["tail", ""], ["cpu s", "3"]]


def test_an_estimate_has_its_interval_and_a_list_its_names() -> None:
    kl = {"value": 0.1, "low": 0.05, "high": 0.2}
    (table,) = tables({"tried": [{"name": "off", "kl": kl}, {"name": "k=2", "kl": kl}]})
    assert rows_of(table)[1:] == [
        ["tried off", "0.1 (0.05 to 0.2)"],
        ["tried k=2", "0.1 (0.05 to 0.2)"],
    ]


@pytest.mark.parametrize(
    "name",
    sorted(KEPT.keys() & headlines.PAGES.keys() - {"drills", "kinds"} - headlines.CHOSEN.keys()),
)
def test_a_page_has_every_figure(name: str) -> None:
    text = "\n".join(tables(KEPT[name][-1]["figures"]))
    assert text.count(" | ") >= len(list(leaves(KEPT[name][-1]["figures"])))


def leaves(of: Any) -> Iterator[Any]:
    for value in of.values():
        yield from leaves(value) if isinstance(value, Mapping) else [value]


def test_chosen_figures_have_a_row_and_a_column_by_the_names_that_lead_to_them() -> None:
    columns = {"{size} replicas": "{hits:.2f} in {ms[0]} ms"}
    table = {"shows": "This table shows hits.", "parts": r"all/(?P<size>\d)/(?P<row>.*)"}
    measured = {
        "all": {"8/ours": {"hits": 0.5, "ms": [3]}, "2/random": {"hits": 0.25, "ms": [4]}},
        "single": {"8/ours": {"hits": 9.0, "ms": [9]}},
    }
    shown, rows = chosen.tables([{**table, "columns": columns}], measured)
    assert shown == "This table shows hits."
    assert rows_of(rows) == [
        ["", "8 replicas", "2 replicas"],
        ["`ours`", "0.50 in 3 ms", ""],
        ["`random`", "", "0.25 in 4 ms"],
    ]


def test_a_chosen_figure_of_several_seeds_can_be_their_median() -> None:
    table = {"shows": "", "parts": "(?P<row>.*)", "columns": {"ms": "{median[ms]:.0f}"}}
    _, rows = chosen.tables([table], {"ours": {"ms": [3, 9, 4]}})
    assert rows_of(rows)[1:] == [["`ours`", "4"]]


def test_a_chosen_figure_that_was_not_measured_leaves_its_cell_empty() -> None:
    table = {"shows": "", "parts": "(?P<row>.*)", "columns": {"p90": "{p90}", "p99": "{p99}"}}
    _, rows = chosen.tables([table], {"ours": {"p90": 1}, "random": {"p99": 2}})
    assert rows_of(rows)[1:] == [["`ours`", "1", ""], ["`random`", "", "2"]]


@pytest.mark.parametrize("name", sorted(KEPT.keys() & headlines.CHOSEN.keys()))
def test_each_chosen_table_has_figures_of_the_last_result(name: str) -> None:
    found = list(chosen.tables(headlines.CHOSEN[name], KEPT[name][-1]["figures"]))
    assert all(len(rows_of(table)) > 1 for table in some(found[1::2]))


def chaos_tests(*runs: Sequence[Any]) -> list[str]:
    """The blocks of a page, from the judgments of each run."""
    figures = [{one.name: one.figures() for one in of} for of in runs]
    wrong = sum(not one.is_right for of in runs for one in of)
    of = {"drills_that_went_wrong": report.goal(wrong, at_most=0)}
    return list(drills.page([{"figures": {"runs": figures}, "goals": of}]))


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
