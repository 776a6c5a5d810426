"""What a backtest makes of its simulations: figures, goals and the plot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from autoscaling.slo import Slo
from benchmarks.backtest import results, startup
from benchmarks.backtest.plays import Play, play_all
from benchmarks.backtest.results import ScenarioResult
from benchmarks.backtest.scenarios import (
    ALL_AT,
    KUBERNETES,
    KUBERNETES_OURS,
    OURS,
    RULE,
    SERVE,
    SERVE_OURS,
    WARM,
    WARM_2,
    Scenario,
    keys,
    policies,
)
from benchmarks.harness.results.kept_parts import KeptParts
from common.errors import Problem
from simulator import engine_profile, plot
from simulator.engine_profile import EngineProfile
from simulator.engines import Hardware
from simulator.fleet import Call
from simulator.results import (
    SimulationSummary,
    arrivals_over_time,
    attainment_over_time,
    mean,
    summary,
)
from simulator.traces import Request, Trace
from simulator.types import FleetSettings, Result, Sample

POOL = FleetSettings(Hardware(), 60.0, Slo(2.0))


def served(number: int, at: float, ttft: float, overflowed: bool = False) -> Call:
    return Call(
        number,
        Request(at, 10, 2),
        first_at=at + ttft,
        ended_at=at + ttft + 0.5,
        overflowed=overflowed,
    )


def result(calls: list[Call], targets: list[int] | None = None) -> Result:
    samples = [Sample(100.0 * i, n, n, n, n, 0) for i, n in enumerate(targets or [1])]
    trace = Trace("hand", tuple(call.request for call in calls), 120.0)
    return Result("antefix", trace, POOL, tuple(calls), tuple(samples), 120.0, 240.0)


CALLS = [
    served(0, 0.0, 1.0),
    served(1, 10.0, 3.0),
    served(2, 70.0, 0.5, overflowed=True),
    Call(3, Request(80.0, 10, 2), rejected_at=80.0),
]


def test_late_rejected_and_overflowed_requests_count_as_misses() -> None:
    found = summary(result(CALLS))
    assert found.attainment == 0.25
    assert (found.rejected, found.overflow_share) == (1, 0.25)
    # of those that the pool itself admitted
    assert (found.ttft_p50_s, found.ttft_p90_s) == (2.0, 2.8)
    assert (found.average_replicas, found.replica_hours) == (2.0, 240 / 3600)


def test_a_flap_is_a_change_soon_after_the_opposite_change() -> None:
    steady = summary(result(CALLS, [1, 2, 3, 3]))
    assert (steady.changes, steady.flaps) == (2, 0)
    flapping = summary(result(CALLS, [1, 2, 1, 2]))
    assert (flapping.changes, flapping.flaps) == (3, 2)
    slow = summary(result(CALLS, [1, 2, 2, 2, 2, 1]))
    assert (slow.changes, slow.flaps) == (2, 0)


def test_attainment_and_arrivals_are_reported_per_bin() -> None:
    course = replace(result(CALLS), trace=Trace("hand", (), 90.0))
    assert attainment_over_time(course) == [(30.0, 0.5), (90.0, 0.0)]
    # the last bin is shorter
    assert arrivals_over_time(course) == [
        (10.0, 2 / 20),
        (30.0, 0.0),
        (50.0, 0.0),
        (70.0, 1 / 20),
        (85.0, 1 / 10),
    ]


def test_a_simulation_has_a_p99_only_with_300_admitted_requests() -> None:
    many = [served(number, 0.1 * number, number / 100) for number in range(300)]
    found = summary(result(many))
    assert found.ttft_p99_s == pytest.approx(2.9601)
    assert summary(result(many[:299])).ttft_p99_s is None
    mixed = mean([found, summary(result(many[:299]))])
    assert mixed.ttft_p99_s is None and mixed.ttft_p90_s == pytest.approx(2.686, abs=0.001)
    assert "ttft_p99_s" not in mixed.as_dict()


def made(attainment: float, hours: float) -> SimulationSummary:
    return SimulationSummary(100, attainment, 0.5, 1.5, 2.0, hours, 10 * hours, 3, 0.0, 4, 1)


def test_means_are_computed_for_each_figure() -> None:
    found = mean([made(1.0, 0.5), made(0.5, 0.3)])
    assert found.attainment == 0.75
    assert found.replica_hours == pytest.approx(0.4)


def scenario_result(
    name: str, ours: list[SimulationSummary], serve: list[SimulationSummary]
) -> ScenarioResult:
    peers = dict.fromkeys((SERVE, SERVE_OURS, *KUBERNETES, *KUBERNETES_OURS), serve)
    summaries = {**dict.fromkeys((OURS, WARM, WARM_2, ALL_AT), ours), **peers}
    return ScenarioResult(name, summaries)


def test_goals_use_the_median_seed() -> None:
    ours = [made(0.995, 0.5), made(0.98, 0.6), made(0.999, 0.4)]
    serve = [made(0.9, 0.7), made(0.985, 0.55), made(0.9, 0.6)]
    judged = results.goals([scenario_result("ramp", ours, serve)])
    attainment = judged["ramp_attainment"]
    assert (attainment["figure"], attainment["range"]) == (0.995, [0.98, 0.999])
    assert (attainment["at_least"], attainment["met"]) == (0.999, False)
    assert judged["ramp_attainment_above_serve_default"]["figure"] == 0.095
    hours = judged["ramp_replica_hours_of_serve_default"]
    assert hours["figure"] == pytest.approx(0.5 / 0.7, abs=1e-4)
    assert hours["range"] == pytest.approx([0.4 / 0.6, 0.6 / 0.55], abs=1e-4)


def with_hpa(result: ScenarioResult, hpa: dict[str, SimulationSummary]) -> ScenarioResult:
    played = {policy: [figures] for policy, figures in hpa.items()}
    return replace(result, summaries={**result.summaries, **played})


def test_goals_compare_with_the_hpa_that_misses_least_over_all_traces() -> None:
    tuned, cheap = "keda-concurrency:4", "hpa-waiting:1"
    ramp = scenario_result("ramp", [made(0.995, 0.5)], [made(0.7, 0.9)])
    tide = scenario_result("tide", [made(0.98, 1.5)], [made(0.6, 1.1)])
    ramp = with_hpa(ramp, {tuned: made(0.9, 1.0), cheap: made(0.5, 0.1)})
    tide = with_hpa(tide, {tuned: made(0.8, 3.0), cheap: made(0.95, 0.1)})
    of = results.totals_of_means([ramp, tide])
    assert of[OURS].misses == pytest.approx(0.5 + 2.0)
    assert of[tuned].misses == pytest.approx(30.0)
    assert of[tuned].replica_hours == 4.0
    assert results.fewest_misses(of, KUBERNETES) == tuned
    judged = results.goals([ramp, tide])
    misses = judged["misses_of_hpa"]
    assert (misses["figure"], misses["peer"], misses["met"]) == (0.0833, tuned, True)
    assert judged["replica_hours_of_hpa"]["figure"] == 0.5
    # 70 misses of the others with Antefix routing, in 2 replica-hours
    for peer in ("hpa", "serve_default"):
        of_it = judged[f"misses_of_{peer}_with_antefix_routing"]
        assert of_it["figure"] == pytest.approx(2.5 / 70, abs=1e-4)


def test_a_recorded_trace_counts_with_every_seed() -> None:
    ramp = scenario_result(
        "ramp", [made(0.9, 1.0), made(0.8, 1.0)], [made(0.7, 1.0), made(0.7, 1.0)]
    )
    recorded = scenario_result("mooncake", [made(0.95, 2.0)], [made(0.9, 3.0)])
    by_seed = results.totals_by_seed([ramp, recorded])
    assert [round(of[OURS].misses) for of in by_seed] == [15, 25]
    assert [of[SERVE].replica_hours for of in by_seed] == [4.0, 4.0]


def test_hpa_has_the_same_targets_with_antefix_routing_as_without() -> None:
    swept = {policy for policy in KUBERNETES if policy.startswith("hpa-")}
    assert {policy.removesuffix("+antefix-routing") for policy in KUBERNETES_OURS} == swept
    assert {f"hpa-concurrency:{target}" for target in (1, 2, 4, 8, 16)} <= swept


SHIPPED = engine_profile.read(engine_profile.SHIPPED)


def test_an_interrupted_backtest_resumes_with_the_finished_simulations(tmp_path: Path) -> None:
    def kept(engine: EngineProfile = SHIPPED) -> KeptParts:
        return KeptParts(tmp_path / "plays.jsonl", "backtest", RULE, engine=engine)

    before = kept()
    for policy in policies("ramp"):
        before.keep(repr(Play("ramp", 11, policy)), made(0.9, 1.0))
    (found,) = play_all([("ramp", 11)], SHIPPED, kept())
    assert found.name == "ramp"
    assert found.summaries == {policy: [made(0.9, 1.0)] for policy in policies("ramp")}
    with pytest.raises(Problem, match="has parts of another benchmark, commit or settings"):
        kept(msgspec.structs.replace(SHIPPED, startup_s=1.0))


def test_every_synthetic_trace_is_played_with_every_seed() -> None:
    of = keys([11, 12], with_recorded=True)
    assert len({*of}) == len(of) == 12
    assert {("ramp", 12), ("mooncake", 0)} <= {*of}


def test_a_faster_start_is_played_with_and_without_a_warm_replica() -> None:
    requests = tuple(Request(0.5 * number, 200, 20) for number in range(40))
    of = Scenario("ramp", 0, Trace("hand", requests, 20.0))
    played = startup.play([of], SHIPPED)
    assert len(played) == 2 * len(startup.STARTUP_S)
    assert {found.requests for found in played.values()} == {40}
    text = startup.page({"hand": played}, [1], "make it", "2026-01-01, on a machine.")
    assert "| `antefix, start 5 s` " in text and "| `antefix, 1 warm, start 120 s` " in text
    judged = startup.goals({"hand": {**played, "antefix, start 120 s": made(0.5, 1.0)}})
    assert judged["hand_attainment_gained_by_a_start_of_5_s"]["met"]


def test_the_same_results_give_the_same_plot(tmp_path: Path) -> None:
    plots = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in plots:
        plot.draw([[result(CALLS), result(CALLS)]], file)
    assert plots[0].read_bytes() == plots[1].read_bytes()
    assert b"<svg" in plots[0].read_bytes()


def test_the_shipped_calibration_states_its_source() -> None:
    shipped = engine_profile.read(engine_profile.SHIPPED)
    assert shipped.source["kind"] == "estimate"
    assert {"prefill_rate", "step_s", "sequence_s", "blocks", "startup_s"} <= {*shipped.source}


@pytest.mark.parametrize(
    "change",
    [
        {"startup_s": -1},
        {"startup_s": "soon"},
        {"source": None},
        {"hardware": {"prefill_rate": 0}},
        {"hardware": {"prefil_rate": 1}},
        {"more": 1},
    ],
)
def test_the_error_names_an_invalid_calibration(tmp_path: Path, change: dict[str, object]) -> None:
    told = {**json.loads(engine_profile.SHIPPED.read_text()), **change}
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(told))
    with pytest.raises(Problem, match=r"engine\.json") as caught:
        engine_profile.read(file)
    assert caught.value.remedy


def test_the_error_names_a_missing_calibration(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="nowhere"):
        engine_profile.read(tmp_path / "nowhere.json")
