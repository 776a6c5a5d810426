"""The benchmark of tiers, without engines."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from vllm.v1.kv_offload.base import TransferResult

from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.results import rules
from benchmarks.tiers import ruled_gateway
from benchmarks.tiers.identical import (
    COMPUTED,
    EVICTED,
    PEER,
    CheckedAnswer,
    CheckedPrompt,
    Checks,
    identical_goals,
    planned,
)
from benchmarks.tiers.prefilling import ALWAYS, CHOICE, CHOICE_AGAIN, TOGETHER
from benchmarks.tiers.pulling import ALONE, ALONE_AGAIN, PEERS
from benchmarks.tiers.run import ANTEFIX, ANTEFIX_AGAIN, DISK, HOST, OFF, OFF_AGAIN, goals_of
from benchmarks.tiers.spreading import rate_of_one, spreading
from benchmarks.tiers.throttled_tier import ThrottledCopies
from benchmarks.tiers.traffic import Documents, HotDocument, Mix, ReturningChats
from deployments.wire.headers import NO_TIERS
from loadgen.workloads import Conversation
from tests.router.candidates import candidate

SETTINGS = {
    "prompt_words": [10, 20],
    "conversations": 3,
    "mixed_words": [10, 100],
    "warm_prompts": 4,
    "requests": 20,
    "hot_share": 0.25,
    "cold_share": 0.5,
    "hot_words": 50,
    "hot_requests": 20,
    "replaced_documents": 3,
    "replaced_rate": 2.0,
}


class Copies:
    """Ends each copy at once."""

    def __init__(self) -> None:
        self._done: list[TransferResult] = []

    def submit_load(self, job_id: int, *blocks: Any) -> bool:
        self._done.append(TransferResult(job_id, True, 100, 0.0))
        return True

    submit_store = submit_load

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done


def ends(copies: ThrottledCopies, wanted: Sequence[int]) -> dict[int, float]:
    """The seconds until each of these copies has ended."""
    began, ended = time.perf_counter(), dict[int, float]()
    while not set(wanted) <= set(ended):
        for one in copies.get_finished():
            ended[one.job_id] = time.perf_counter() - began
    return ended


def test_loads_end_one_after_another_and_stores_at_once() -> None:
    copies = ThrottledCopies(Copies(), bytes_per_s=2000.0)
    for job_id in (1, 2):
        copies.submit_load(job_id, None, None)
    copies.submit_store(3, None, None)
    ended = ends(copies, (1, 2, 3))
    assert list(ended) == [3, 1, 2]
    assert ended[1] >= 0.04
    assert ended[2] >= 0.09


def text_of(asked: Conversation) -> str:
    return " ".join(message.content for message in asked.turns[0].messages)


def test_runs_of_a_seed_differ_only_in_the_names_of_new_documents() -> None:
    mix = Mix(SETTINGS)
    one, other = (mix.requests(5, run, 100.0) for run in ("a", "b"))
    assert [asked.arrives_at for asked in one] == [asked.arrives_at for asked in other]
    differ = [(text_of(a), text_of(b)) for a, b in zip(one, other, strict=True) if a != b]
    assert differ
    assert all(a.removeprefix("a") == b.removeprefix("b") for a, b in differ)


def test_requests_about_a_document_begin_with_it_and_differ_afterwards() -> None:
    document = HotDocument("alone 5 0", SETTINGS)
    asked = [text_of(one) for one in document.requests("5 0", rate=10.0)]
    assert all(text.startswith(text_of(document.first())) for text in asked)
    assert len(set(asked)) == 20


def test_documents_of_all_runs_get_the_same_questions_at_the_same_times() -> None:
    one, other = (
        HotDocument(f"{run} 5 0", SETTINGS).requests("5 0", rate=10.0) for run in ("alone", "peers")
    )
    assert [asked.arrives_at for asked in one] == [asked.arrives_at for asked in other]
    assert all(
        text_of(a).removeprefix("alone") == text_of(b).removeprefix("peers")
        for a, b in zip(one, other, strict=True)
    )
    assert not set(map(text_of, one)) & set(map(text_of, other))


def test_each_turn_of_a_chat_begins_with_the_turn_before() -> None:
    chats = ReturningChats("seed", SETTINGS)
    first = [text_of(chat) for chat in chats.first()]
    assert len(set(first)) == 3
    second = text_of(chats.next(1))
    assert second.startswith(first[1])
    assert text_of(chats.next(1)).startswith(second)


@pytest.mark.parametrize(
    ("rule", "found", "limit"),
    [(0, 64, ""), (64, 64, ""), (65, 64, NO_TIERS), ("never", 64, NO_TIERS), (512, 0, "")],
)
def test_a_rule_decides_by_the_tokens_in_tiers(rule: Any, found: int, limit: str) -> None:
    assert ruled_gateway.limit(rule, candidate(host_tokens=found)) == limit


def figures(**more: Any) -> dict[str, Any]:
    return {
        "failed": 0,
        "returning": [],
        "errors": [],
        "cost": [],
        "points": {},
        "pulling": {},
        "spreading": {},
        "prefilling": {},
        "replacing": {},
        **more,
    }


def test_the_cost_of_tiers_is_what_exceeds_the_noise() -> None:
    seeds = [{OFF: 1.0, OFF_AGAIN: 1.05, HOST: 1.02, DISK: 1.04}] * 3
    assert goals_of(figures(cost=seeds))["cost_above_noise"]["met"]
    seeds = [{OFF: 1.0, OFF_AGAIN: 0.98, HOST: 1.02, DISK: 1.10}] * 3
    goal = goals_of(figures(cost=seeds))["cost_above_noise"]
    assert not goal["met"]
    assert goal["figure"] == pytest.approx(0.08)


def test_antefix_is_compared_with_the_best_rule_at_each_point_and_with_each_rule_at_its_worst() -> (
    None
):
    points = {
        "0.1 0.5": {ANTEFIX: [1.0], ANTEFIX_AGAIN: [1.1], "0": [1.0], "never": [2.0]},
        "2.0 0.5": {ANTEFIX: [1.2], ANTEFIX_AGAIN: [1.2], "0": [1.5], "never": [1.0]},
    }
    goals = goals_of(figures(points=points))
    slower, faster = goals["slower_than_best_rule"], goals["faster_than_each_rule"]
    assert slower["by_point"] == {"0.1 0.5": pytest.approx(1 / 1.1, abs=1e-3), "2.0 0.5": 1.2}
    assert not slower["met"]
    assert faster["by_rule"] == {"0": 1.25, "never": 2.0}
    assert faster["figure"] == 1.25


def test_pulls_are_judged_at_the_load_at_which_they_pay_least() -> None:
    points = {
        "0.5": {ALONE: [1.0, 1.0], ALONE_AGAIN: [1.0, 1.25], PEERS: [1.1, 1.3]},
        "1.0": {ALONE: [2.0, 2.0], ALONE_AGAIN: [2.0, 2.0], PEERS: [1.0, 1.0]},
    }
    goal = goals_of(figures(pulling={"points": points, "pulled": 9}))["pulling_ttft"]
    assert goal["by_load"] == {"0.5": pytest.approx(1.2), "1.0": 0.5}
    assert goal["figure"] == pytest.approx(1.2 / 1.25)
    assert goal["met"]


def spread(peers: float, pulled: list[tuple[float, float]]) -> dict[str, Any]:
    return {ALONE: 1.0, ALONE_AGAIN: 0.9, PEERS: peers, "pulled": pulled}


def test_pulls_of_a_hot_document_pay_if_they_save_more_than_the_noise() -> None:
    seeds = [spread(of, [(0.9, 1.0), (1.3, 1.0)]) for of in (0.8, 0.85, 0.95)]
    goals = goals_of(figures(spreading={"seeds": seeds}))
    assert goals["spreading_ttft"]["figure"] == pytest.approx(0.85 * 1.1)
    assert goals["spreading_ttft"]["met"]
    assert goals["spreading_ttft"]["pulled"] == 6
    assert goals["prediction_peer"]["figure"] == pytest.approx(0.2)
    assert not goals["prediction_peer"]["met"]
    seeds = [spread(0.95, [])]
    goals = goals_of(figures(spreading={"seeds": seeds}))
    assert not goals["spreading_ttft"]["met"]
    assert "prediction_peer" not in goals


def test_the_choice_of_the_engine_that_computes_is_compared_with_always_the_other_one() -> None:
    of = {TOGETHER: [(1.0, 2.0)], ALWAYS: [(2.0, 1.0)], CHOICE: [(1.8, 1.5)]}
    points = {
        "0.5": {**of, CHOICE_AGAIN: [(1.98, 1.5)]},
        "0.9": {**of, CHOICE: [(2.2, 1.0)], CHOICE_AGAIN: [(2.2, 1.0)]},
    }
    goal = goals_of(figures(prefilling={"points": points, "prefilled": 9}))["prefilling_ttft"]
    assert goal["figure"] == pytest.approx(1.1)
    assert not goal["met"]
    half = goal["by_load"]["0.5"]
    assert (half["choice_of_always"], half["noise"]) == (0.9, pytest.approx(0.1))
    assert (half["always_of_together_ttft"], half["always_of_together_decode"]) == (2.0, 0.5)
    assert (half["choice_of_together_ttft"], half["choice_of_together_decode"]) == (1.8, 0.75)


RULE = rules.of("tiers")
SMALL_PROMPT = [7] * 100


def answer(*tokens: int, reused: int = 0, logprob: float = -1.0) -> CheckedAnswer:
    return CheckedAnswer(list(tokens), [logprob] * len(tokens), reused)


def compared(
    *answers: CheckedAnswer | None, controls: Sequence[CheckedAnswer], way: str = PEER
) -> Checks:
    found = Checks()
    for one in answers:
        found.add(way, CheckedPrompt(SMALL_PROMPT, list(controls)), one, with_fault=False)
    return found


def test_an_answer_with_other_tokens_or_none_misses_the_goals() -> None:
    controls = [answer(1, 2), answer(1, 2)]
    found = compared(answer(1, 2, reused=96), answer(1, 3), None, controls=controls)
    goals = identical_goals(RULE, found.figures())
    assert not goals["identical_wrong"]["met"]
    assert not goals["identical_failed"]["met"]
    assert goals["identical_reused"]["figure"] == 0.5


def test_an_answer_whose_controls_differ_is_counted_and_not_compared() -> None:
    found = compared(answer(3), controls=[answer(1), answer(2)]).figures()
    assert found["wrong"] == []
    assert found["uncertain_share"] == 1.0


def test_a_computed_answer_reuses_nothing_and_has_the_same_logprobs() -> None:
    controls = [answer(1), answer(1)]
    goals = identical_goals(
        RULE, compared(answer(1, logprob=-1.5), controls=controls, way=COMPUTED).figures()
    )
    assert goals["identical_reused"]["figure"] == 1.0
    assert goals["identical_logprobs"] == {"figure": 0.5, "at_most": 0.01, "met": False}


@pytest.mark.parametrize(("answers", "faults"), [(10_000, 200), (1000, 20), (60, 6)])
def test_faults_are_in_proportion_to_answers_and_of_each_kind(answers: int, faults: int) -> None:
    plan = planned(answers, RULE.settings, random.Random(1))
    kinds = Counter(fault for of_round in plan for fault in of_round)
    assert kinds.keys() == RULE.settings["identical_faults"].keys()
    assert kinds.total() == faults
    assert not any(plan[:EVICTED])


def test_questions_before_and_after_a_replacement_are_about_the_same_documents() -> None:
    documents = Documents(1, SETTINGS)
    each = [text_of(asked) for asked in documents.each()]
    starts = {" ".join(text.split()[:12]) for text in each}
    asked = documents.questions(10.0)
    assert len(starts) == 3 and len(asked) == 20
    assert {" ".join(text_of(one).split()[:12]) for one in asked} <= starts
    assert [one.arrives_at for one in asked] == sorted(one.arrives_at for one in asked)


def test_the_goal_of_replacements_is_that_of_the_fleet_with_pulls() -> None:
    seeds = {ALONE: [{"of_steady": 0.8}] * 3, PEERS: [{"of_steady": of} for of in (0.98, 0.9, 1)]}
    goal = goals_of(figures(replacing=seeds))["replaced_cached_share"]
    assert goal["met"] and goal["figure"] == 0.98 and goal["without_pulls"] == [0.8] * 3


class Fleet:
    """Answers at once. Every fourth request of a document pulls, if its replicas have peers."""

    def __init__(self, pulls: bool) -> None:
        self.played: list[str] = []
        self._pulls = pulls

    async def play(self, http: object, asked: Sequence[Conversation]) -> list[Answer]:
        self.played += map(text_of, asked)
        return [
            Answer(one.name, 0, 0.0, 0.0, 0.5, 1.0, "r0", 10, 0, 0, 0.4, 0.5, str(number))
            for number, one in enumerate(asked)
        ]

    async def way(self, http: object, answer: Answer) -> str | None:
        return "peer" if self._pulls and int(answer.request_id) % 4 == 0 else None


async def test_each_document_is_played_twice_without_pulls_and_once_with_them() -> None:
    fleets: Any = {ALONE: Fleet(pulls=False), PEERS: Fleet(pulls=True)}
    settings = {**SETTINGS, "hot_documents": 2, "hot_load": 1.25}
    http: Any = None
    found = await spreading(http, fleets, settings, 100.0, [1, 2])
    assert [len(seed["pulled"]) for seed in found["seeds"]] == [10, 10]
    assert found["seeds"][0]["pulled"][0] == (0.4, 0.5)
    assert found["seeds"][0][ALONE_AGAIN] == 0.5
    warm_up, requests = 3, 21
    assert len(fleets[ALONE].played) == (warm_up + 2 * 2 * 2) * requests
    assert len(fleets[PEERS].played) == (warm_up + 2 * 2) * requests


async def test_the_rate_of_one_replica_is_measured_when_all_ask_at_once() -> None:
    fleet: Any = Fleet(pulls=False)
    http: Any = None
    assert await rate_of_one(http, fleet, SETTINGS) == 20.0
