"""The traffic is a function of its seed, and is what its name says."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.harness.load.oracle import most_cached
from benchmarks.harness.load.routed_runs import WORKLOADS as COMPARED
from loadgen.workloads import HOT_SHARE, TURNS, WORKLOADS, Conversation, conversations
from tests.some import some

SECONDS = 20.0
SEGMENT = 128


def words_of(talk: Conversation, turn: int = 0) -> list[str]:
    """A prompt's words, each about one token; roles are left out."""
    return [word for m in talk.turns[turn].messages for word in m.content.split()]


def reuse(talks: list[Conversation]) -> float:
    """The share of the words that an oracle finds cached, all conversations side by side."""
    turns = range(max(len(talk.turns) for talk in talks))
    prompts = [words_of(talk, turn) for turn in turns for talk in talks]
    vocabulary = {word: i for i, word in enumerate(sorted({w for p in prompts for w in p}))}
    ids = [[vocabulary[word] for word in prompt] for prompt in prompts]
    return sum(most_cached(ids, SEGMENT)) / sum(map(len, ids))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_same_seed_gives_the_same_traffic(workload: str) -> None:
    assert conversations(workload, 1, SECONDS) == conversations(workload, 1, SECONDS)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_different_seed_gives_the_same_number_of_different_requests(workload: str) -> None:
    one, other = conversations(workload, 1, SECONDS), conversations(workload, 2, SECONDS)
    assert len(one) == len(other)
    assert not {tuple(words_of(t)) for t in one} & {tuple(words_of(t)) for t in other}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_arrivals_are_sorted_and_within_the_duration(workload: str) -> None:
    arrivals = [talk.arrives_at for talk in conversations(workload, 1, SECONDS)]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0.0
    assert arrivals[-1] <= SECONDS


@pytest.mark.parametrize("workload", WORKLOADS)
def test_conversation_names_are_unique_and_sorted_by_arrival(workload: str) -> None:
    names = [talk.name for talk in conversations(workload, 1, 60.0)]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("workload", COMPARED)
def test_prompts_fit_the_engines(workload: str) -> None:
    talks = conversations(workload, 1, 60.0)
    assert max(len(words_of(talk, -1)) for talk in talks) < 3500


def test_each_turn_repeats_the_whole_conversation_so_far() -> None:
    for talk in some(conversations("multi_turn", 1, SECONDS)):
        assert len(talk.turns) == TURNS
        for before, after in itertools.pairwise(talk.turns):
            assert after.messages[: len(before.messages)] == before.messages
            assert [m.role for m in after.messages[-2:]] == ["assistant", "user"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_number_of_requests_matches_the_rate(workload: str) -> None:
    of = WORKLOADS[workload]
    talks = conversations(workload, 1, 120.0, of.arrivals(120.0, 6.0))
    assert sum(len(talk.turns) for talk in talks) == 6.0 * 120.0


def test_prompts_have_the_given_length() -> None:
    (long, *_), (short, *_) = (
        conversations("long_documents", 1, SECONDS, scale=scale) for scale in (1.0, 0.1)
    )
    assert 6000 <= len(words_of(long)) <= 12040
    assert len(words_of(short)) == pytest.approx(len(words_of(long)) / 10, abs=2)


def test_an_agent_calls_only_its_own_tools_and_gets_results() -> None:
    for talk in some(conversations("agents", 1, SECONDS)):
        last = talk.turns[-1]
        names = {tool["function"]["name"] for tool in last.tools}
        calls = [call for m in last.messages for call in m.more.get("tool_calls", ())]
        answered = [m.more["tool_call_id"] for m in last.messages if m.role == "tool"]
        assert {call["function"]["name"] for call in calls} <= names
        assert [call["id"] for call in calls] == answered
        assert len(calls) == len(talk.turns) - 1
        assert all(turn.tools == last.tools for turn in talk.turns)


def test_only_later_turns_have_think_time() -> None:
    for talk in some(conversations("multi_turn", 1, SECONDS)):
        assert talk.turns[0].think_s == 0.0
        assert all(turn.think_s > 0.0 for turn in talk.turns[1:])


def test_half_of_the_hot_prefix_traffic_has_the_hot_prefix() -> None:
    talks = conversations("hot_prefix", 1, SECONDS)
    systems = [talk.turns[0].messages[0].content for talk in talks]
    hottest = max(systems.count(system) for system in systems)
    assert hottest == round(HOT_SHARE * len(talks))
    assert len(set(systems)) == len(talks) - hottest + 1


@pytest.mark.parametrize("workload", ["short", "no_reuse"])
def test_workloads_without_shared_prefixes_have_nothing_to_reuse(workload: str) -> None:
    assert reuse(conversations(workload, 1, SECONDS)) == 0.0


@pytest.mark.parametrize("workload", ["multi_turn", "shared_system", "agents", "long_documents"])
def test_most_tokens_are_reusable_in_workloads_with_shared_prefixes(workload: str) -> None:
    assert reuse(conversations(workload, 1, SECONDS)) > 0.6
