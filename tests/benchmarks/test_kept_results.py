"""Results are appended; none that is there is ever changed."""

import json
from pathlib import Path
from typing import Any

from benchmarks import kept_results, measured
from benchmarks.pages.parts import span


def result(figure: float, benchmark: str = "index") -> dict[str, Any]:
    goals = {"lookup_ms": {"figure": figure, "at_most": 1.0, "met": figure <= 1.0}}
    return {"benchmark": benchmark, "figures": {}, "goals": goals}


def test_a_run_that_missed_its_goal_stays_after_a_later_success(tmp_path: Path) -> None:
    missed, met = result(1.5), result(0.5)
    for one in (missed, met, result(2.0, "scale")):
        kept_results.append(one, tmp_path)
    history = kept_results.read(tmp_path)
    assert history == {"index": [missed, met], "scale": [result(2.0, "scale")]}
    assert kept_results.last(history)["index"] == met
    assert span(history["index"], "lookup_ms") == "0.5 to 1.5"


def test_the_same_output_given_twice_is_one_run(tmp_path: Path) -> None:
    for _ in range(2):
        kept_results.append(result(0.5), tmp_path)
    assert kept_results.read(tmp_path) == {"index": [result(0.5)]}


def test_former_names_in_kept_results_are_read_as_their_present_names(tmp_path: Path) -> None:
    former = {"misses_under_our_routing": {"peer": "hpa-concurrency:1+ours"}}
    (tmp_path / "backtest.jsonl").write_text(f"{json.dumps(former)}\n")
    now = {"misses_with_antefix_routing": {"peer": "hpa-concurrency:1+antefix-routing"}}
    assert kept_results.read(tmp_path) == {"backtest": [now]}


def test_the_range_of_a_new_goal_covers_only_runs_that_have_it() -> None:
    runs = [{"goals": {}}, result(0.5), result(0.7)]
    assert span(runs, "lookup_ms") == "0.5 to 0.7 in 2"
    assert span(runs[:2], "lookup_ms") == "one"


def test_every_stored_result_states_what_was_measured() -> None:
    runs = [run for of in kept_results.read().values() for run in of]
    assert len(runs) > 50
    wanted = {"benchmark", "command", "commit", "dirty", "seeds", "date", "cpu", "versions"}
    assert not [run["benchmark"] for run in runs if wanted - run.keys()]
    # results named no commit before: that is said, not made up
    unnamed = [run for run in runs if "commit_from" not in run and "python_build" not in run]
    assert not unnamed


def test_every_benchmark_with_a_result_has_paths_that_make_it_stale() -> None:
    assert kept_results.read().keys() <= measured.PATHS.keys() | measured.REMOVED
