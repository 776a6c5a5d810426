"""How routers are judged side by side, from runs whose figures are known, and how they are started
and asked; no engine and no peer runs here.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.peers import routers
from benchmarks.peers.cases import ANSWER_TOKENS, CASES, halves, planned
from benchmarks.peers.engines import Backends, fleet_of, plain_command
from benchmarks.peers.kept_runs import KeptRuns
from benchmarks.peers.results import (
    PeerRun,
    Runs,
    Unmeasured,
    figures,
    goals,
    grouped,
    note,
    ratios,
    run_of,
)
from benchmarks.peers.routers import ROUTERS, places
from deployments.fleet.fleet import RedisSettings
from loadgen.planning import RequestForm
from loadgen.player import SentRequest
from tests.some import some

USUAL, EXACT = "multi_turn", "cache_reset"


def run(case: str, router: str, seed: int, ttft: float, cached: float = 0.5) -> PeerRun:
    return PeerRun(
        case, router, seed, 10, 0, "", ttft, 2 * ttft, cached, 0.05, "", "", 2 * ttft, 0.0
    )


def runs_of(case: str, **ttfts: tuple[float, ...]) -> Runs:
    """Mean TTFTs of each router, one for each seed."""
    return grouped(
        [
            run(case, router, seed, ttft)
            for router, of_seeds in ttfts.items()
            for seed, ttft in enumerate(of_seeds)
        ]
    )


def sent(ttft: float | None, cached: int = 50) -> SentRequest:
    if ttft is None:
        return SentRequest("s", 0, 1.0, 1.0, 2.0, 503, "http_503", "no worker")
    return SentRequest(
        *("s", 0, 1.0, 1.0, 3.0, 200),
        token_times_s=(1.0 + ttft, 2.5),
        prompt_tokens=100,
        cached_tokens=cached,
    )


def test_a_run_reports_answered_requests_and_counts_failures() -> None:
    found = run_of(
        USUAL, "smg", 1, [sent(0.1), sent(0.3), sent(None)], cpu_s=0.06, on="here", commit=""
    )
    assert (found.requests, found.failed, found.failure) == (3, 1, "http_503: no worker")
    assert found.ttft_mean == pytest.approx(0.2)
    assert found.cached_ratio == 0.5
    assert found.cpu_ms_a_request == pytest.approx(20.0)


def test_a_router_without_an_answered_request_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no worker"):
        run_of(USUAL, "smg", 1, [sent(None)], cpu_s=0.0, on="here", commit="")


def test_a_router_that_hides_cached_tokens_is_an_error() -> None:
    request = dataclasses.replace(sent(0.1), cached_tokens=None)
    with pytest.raises(RuntimeError, match="no answer says what was cached"):
        run_of(USUAL, "smg", 1, [request], cpu_s=0.0, on="here", commit="")


def test_routers_are_compared_on_the_seeds_that_both_have() -> None:
    runs = runs_of(USUAL, antefix=(1.0, 3.0), smg=(2.0, 2.0, 9.0))
    assert ratios(runs, USUAL, "smg", "mean_ttft") == [0.5, 1.5]


def test_antefix_is_compared_with_the_best_other_router() -> None:
    judged = goals(runs_of(USUAL, antefix=(1.0,), smg=(0.8,), litellm=(2.0,)))
    goal = judged["multi_turn_mean_ttft_by_best_other"]
    assert (goal["other"], goal["figure"], goal["met"]) == ("smg", 1.25, False)


@pytest.mark.parametrize(
    ("case", "ours", "met"),
    [
        (USUAL, (1.1, 1.2, 0.99), False),  # the luckiest seed counts no more than another
        (USUAL, (1.1, 0.9, 1.0), True),
        (EXACT, (1.1, 1.2, 0.99), False),
        (EXACT, (1.1, 0.9, 0.99), True),
        (EXACT, (1.0, 1.0, 1.0), False),  # as good is not better
    ],
)
def test_antefix_must_be_better_in_cases_that_need_cache_knowledge(
    case: str, ours: tuple[float, ...], met: bool
) -> None:
    judged = goals(runs_of(case, antefix=ours, smg=(1.0, 1.0, 1.0)))
    assert judged[f"{case}_mean_ttft_by_best_other"]["met"] is met
    assert judged[f"{case}_p90_ttft_by_best_other"]["met"] is met


def test_the_result_compares_antefix_with_each_other_router() -> None:
    told = figures(runs_of(USUAL, antefix=(1.0, 3.0, 2.0), smg=(2.0, 2.0, 2.0)))
    assert told["multi_turn/antefix"]["ttft_mean_ms"] == [1000.0, 3000.0, 2000.0]
    assert "ours_by_it" not in told["multi_turn/antefix"]
    same = {"mean_ttft": 1.0, "p90_ttft": 1.0, "uncached": 1.0}
    assert told["multi_turn/smg"]["ours_by_it"] == same


def test_a_router_with_separate_engines_has_figures_and_is_no_best_other() -> None:
    found = runs_of(USUAL, antefix=(0.2,), smg=(0.3,), ray_llm=(0.1,))
    judged = goals(found)
    assert judged["multi_turn_mean_ttft_by_best_other"]["other"] == "smg"
    assert figures(found)["multi_turn/ray_llm"]["ours_by_it"]["mean_ttft"] == 2.0


def test_a_figure_that_no_router_could_miss_has_no_goal() -> None:
    runs = [run("short", router, 1, 0.1, cached=0.0) for router in ("antefix", "smg")]
    judged = goals(grouped(runs))
    assert "short_mean_ttft_by_best_other" in judged
    assert "short_uncached_by_best_other" not in judged


def test_other_routers_get_plain_vllm_engines_with_the_same_arguments(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, small_caches=True, metrics_port=9)
    ((_, pool),) = fleet.pools.items()
    events = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    command = plain_command(pool.model, pool.engine_args, 8001, events)
    assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert {f"--{name.replace('_', '-')}" for name in pool.engine_args} <= {*command}
    told = json.loads(command[command.index("--kv-events-config") + 1])
    assert (told["endpoint"], told["replay_endpoint"]) == ("tcp://*:1", "tcp://127.0.0.1:2")


def test_a_run_reports_answer_times_and_the_lateness_of_requests() -> None:
    late = [dataclasses.replace(sent(0.5), sent_s=1.0 + seconds) for seconds in (0.0, 0.2)]
    found = run_of(USUAL, "antefix", 1, late, cpu_s=0.1, on="", commit="")
    assert found.e2e_mean == pytest.approx(2.0)
    assert found.sent_late_p90 == pytest.approx(0.18)
    assert note(grouped([found, run(USUAL, "smg", 1, 0.1)])) == {
        "note": "the load generator was late in 1 of 2 runs, by up to 0.18 s at p90"
    }
    assert not note(grouped([run(USUAL, "smg", 1, 0.1)]))


def test_the_result_notes_each_run_that_could_not_be_measured() -> None:
    fell = Unmeasured(EXACT, "litellm", 1, "it fell")
    assert note(runs_of(EXACT, antefix=(0.2,)), [fell]) == {
        "note": "cache_reset behind litellm was not measured with seed 1: it fell"
    }


def test_antefix_looks_up_within_the_default_budget(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, small_caches=False, metrics_port=9)
    assert fleet.redis.lookup_budget_ms == RedisSettings().lookup_budget_ms


def test_fewer_cached_tokens_miss_a_goal_at_any_ttft() -> None:
    runs = [run(USUAL, "antefix", 1, 0.1, cached=0.4), run(USUAL, "smg", 1, 0.2, cached=0.7)]
    judged = goals(grouped(runs))
    assert judged["multi_turn_mean_ttft_by_best_other"]["met"]
    cached = judged["multi_turn_uncached_by_best_other"]
    assert (cached["figure"], cached["met"]) == (2.0, False)


def test_only_failed_requests_of_antefix_miss_a_goal() -> None:
    ours, other = run(USUAL, "antefix", 1, 0.1), run(USUAL, "smg", 1, 0.1)
    failed = goals(grouped([dataclasses.replace(ours, failed=1), other]))["failed"]
    assert (failed["figure"], failed["met"]) == (1, False)
    assert goals(grouped([ours, dataclasses.replace(other, failed=1)]))["failed"]["met"]


def test_runs_that_are_kept_are_not_run_again(tmp_path: Path) -> None:
    file, routers = tmp_path / "peers.jsonl", ["antefix", "smg", "litellm"]
    ours, smg = (run(USUAL, router, 1, 0.1) for router in routers[:2])
    fell = Unmeasured(USUAL, "litellm", 1, "it fell")
    KeptRuns(file).replace(USUAL, 1, [ours, smg, fell])
    kept = KeptRuns(file)
    assert (kept.measured, kept.unmeasured) == ([ours, smg], [fell])
    assert kept.have(USUAL, 1, routers) and kept.have(USUAL, 1, ["smg"])
    assert not kept.have(USUAL, 2, routers) and not kept.have(EXACT, 1, routers)


def test_a_new_router_causes_new_runs_of_the_routers_that_it_is_compared_with(
    tmp_path: Path,
) -> None:
    kept = KeptRuns(tmp_path / "peers.jsonl")
    other = run(USUAL, "antefix", 2, 0.3)
    kept.replace(USUAL, 1, [run(USUAL, "antefix", 1, 0.1)])
    kept.replace(USUAL, 2, [other])
    assert not kept.have(USUAL, 1, ["antefix", "smg"])
    again = [run(USUAL, "antefix", 1, 0.2), run(USUAL, "smg", 1, 0.2)]
    kept.replace(USUAL, 1, again)
    assert KeptRuns(tmp_path / "peers.jsonl").measured == [other, *again]


def test_a_line_that_is_no_run_is_named_with_its_remedy(tmp_path: Path) -> None:
    file = tmp_path / "peers.jsonl"
    file.write_text('{"case": "multi_turn", "ttft": 1}\n')
    with pytest.raises(ValueError, match=r"'ttft': 1.* is no run of this release: delete its line"):
        KeptRuns(file)


@pytest.mark.parametrize("name", CASES)
def test_every_router_gets_the_same_requests_which_fit_into_the_engines(name: str) -> None:
    talks = CASES[name].conversations(seed=3, requests=60)
    assert talks == CASES[name].conversations(seed=3, requests=60)
    assert sum(len(talk.turns) for talk in talks) == pytest.approx(60, abs=6)
    longest = max(
        sum(len(message.content.split()) for message in turn.messages)
        for talk in talks
        for turn in talk.turns
    )
    assert longest < 3900


def test_the_first_half_contains_the_prompts_that_the_second_extends() -> None:
    talks = CASES[EXACT].conversations(seed=1, requests=30)
    before, after = halves(talks)
    for talk, first, second in some(zip(talks, before, after, strict=True)):
        assert [*first.turns, *second.turns] == [*talk.turns]
        last = first.turns[-1].messages
        assert second.turns[0].messages[: len(last)] == last


def test_requests_of_a_conversation_are_spread_over_all_gateways_for_each_router() -> None:
    talks = CASES[USUAL].conversations(seed=1, requests=60)
    form = RequestForm("small", "run", ANSWER_TOKENS)
    urls = ["http://a", "http://b"]
    paths = [
        [request.path for request in session.requests]
        for session in planned(talks, form, urls, seed=1)
    ]
    assert {path for of_one in paths for path in of_one} == {
        f"{url}/v1/chat/completions" for url in urls
    }
    assert any(len(set(of_one)) == 2 for of_one in paths)
    again = planned(talks, form, urls, seed=1)
    assert paths == [[request.path for request in session.requests] for session in again]


def test_all_gateways_of_antefix_accept_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routers, "Launched", lambda command, log, variables, asked: asked)
    backends = Backends(
        fleet_of(tmp_path, small_caches=False, metrics_port=9),
        urls=(),
        secret="secret",
        api_key="key",
        redis_url="redis://127.0.0.1:1",
    )
    for place in some(places(tmp_path, 2)):
        asked, headers = ROUTERS["antefix"].start(backends, place)
        assert headers == {"authorization": "Bearer key"}
        assert asked["api_keys"].keys() == {"key"}  # type: ignore[index]


def test_a_router_runs_only_the_cases_that_suit_it() -> None:
    suited = {
        name: {case for case, of in CASES.items() if router.suits(of)}
        for name, router in ROUTERS.items()
    }
    assert suited["antefix"] == suited["smg"] == suited["litellm"] == {*CASES}
    assert suited["smg_mesh"] == {"two_gateways", "four_gateways"}
    assert suited["ray_llm"] == {case for case, of in CASES.items() if not of.says}
