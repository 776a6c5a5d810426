"""Engines that compute nothing, yet queue, cache and report events as vLLM's do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from router.board.load import ReplicaQueue
from router.index.cached_blocks import CachedBlocks
from router.index.kv_events import BlockRemoved, BlockStored, KvEvent
from router.index.segment_keys import Namespace, SegmentHasher, index_secret
from simulator.cache.kv_tiers import TierSettings
from simulator.engines import Hardware, Job, SimulatedEngine, StepOutcome

BLOCK, SEGMENT = 2, 4
# One second a prompt token, ten a step, a fifth for each request that decodes in it.
SLOW = Hardware(
    prefill_rate=1.0,
    step_s=10.0,
    sequence_s=0.2,
    step_tokens=8,
    sequences=4,
    block_tokens=BLOCK,
    blocks=100,
)
SMALL = Hardware(step_tokens=6, sequences=3, block_tokens=BLOCK, blocks=8)


def job(name: str, prompt: Sequence[int], answer: Sequence[int] = (9,), expected: int = 0) -> Job:
    return Job(name, [*prompt, *answer], len(prompt), expected)


def served(engine: SimulatedEngine, *jobs: Job, at: float = 0.0) -> StepOutcome:
    """All of them handed in at once, and carried to the end."""
    for each in jobs:
        engine.submit(each, at)
    return engine.advance(float("inf"))


def names(ended: list[tuple[Job, float]]) -> list[tuple[str, object]]:
    return [(each.ticket, pytest.approx(at)) for each, at in ended]


def test_a_prompt_takes_a_step_and_its_tokens_time() -> None:
    outcome = served(SimulatedEngine(SLOW), job("a", range(5)), at=100.0)
    assert names(outcome.first_tokens) == [("a", 115.0)]
    assert names(outcome.finished) == [("a", 115.0)]


def test_each_further_token_takes_one_step_that_grows_with_the_running_requests() -> None:
    answer = (7, 8, 9)
    outcome = served(SimulatedEngine(SLOW), job("a", range(3), answer), job("b", range(3), answer))
    # The second comes when a step is under way, and finds the block that is cached by then.
    assert names(outcome.first_tokens) == [("a", 13.0), ("b", 24.2)]
    assert names(outcome.finished) == [("a", 34.6), ("b", 44.8)]


def test_prompts_are_prefilled_in_order_within_the_tokens_of_a_step() -> None:
    long, short = job("long", range(20)), job("short", range(100, 102))
    outcome = served(SimulatedEngine(SLOW), long, short)
    # three steps, of 8, 8 and 4 + 2 tokens
    assert names(outcome.first_tokens) == [("long", 52.0), ("short", 52.0)]


def test_a_request_waits_while_the_maximum_number_of_requests_runs() -> None:
    one_by_one = Hardware(prefill_rate=1.0, step_s=10.0, sequence_s=0.0, sequences=1)
    outcome = served(SimulatedEngine(one_by_one), job("a", [1], (8, 9)), job("b", [2]))
    assert names(outcome.finished) == [("a", 21.0), ("b", 32.0)]


def test_a_request_waits_until_its_answer_has_room_too() -> None:
    engine = SimulatedEngine(SMALL)
    first, second = job("a", range(10), range(20, 24)), job("b", range(30, 34))
    engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    engine.advance(1e-9)
    assert engine.load()["cache"].use == 7 / 8
    outcome = engine.advance(float("inf"))
    assert [each.ticket for each, _ in outcome.finished] == ["a", "b"]
    assert outcome.finished[0][1] < outcome.first_tokens[1][1]


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        SimulatedEngine(SMALL).submit(job("a", range(17)), 0.0)


def test_whole_blocks_of_an_earlier_prompt_are_found() -> None:
    engine = SimulatedEngine(SLOW)
    served(engine, job("a", [1, 2, 3, 4, 5]))
    again = job("b", [1, 2, 3, 4, 6, 7])
    served(engine, again)
    assert again.cached_tokens == 4


def test_the_next_turn_reuses_the_blocks_of_an_answer() -> None:
    engine = SimulatedEngine(SLOW)
    served(engine, job("a", [1, 2], (3, 4, 5)))
    turn = job("b", [1, 2, 3, 4, 5, 6])
    served(engine, turn)
    assert turn.cached_tokens == 4


def test_the_last_prompt_token_is_always_computed() -> None:
    engine = SimulatedEngine(SLOW)
    served(engine, job("a", [1, 2, 3, 4]))
    again = job("b", [1, 2, 3, 4])
    served(engine, again)
    assert again.cached_tokens == 2


def test_equal_tokens_after_a_different_prefix_are_not_reused() -> None:
    engine = SimulatedEngine(SLOW)
    served(engine, job("a", [1, 2, 3, 4]))
    other = job("b", [5, 6, 3, 4, 7])
    served(engine, other)
    assert other.cached_tokens == 0


def test_blocks_in_use_are_not_evicted() -> None:
    engine = SimulatedEngine(SMALL)
    engine.submit(job("a", range(6), range(10, 20)), 0.0)
    events = list(engine.advance(1.0).events)
    assert not [event for event in events if isinstance(event, BlockRemoved)]


def test_a_block_is_reported_once_while_it_is_held() -> None:
    engine = SimulatedEngine(SLOW)
    outcome = served(engine, job("a", range(5)), job("b", range(5)), job("c", range(5)))
    assert stored_in(outcome.events) == 2


def test_the_load_counts_requests_before_and_after_their_first_token() -> None:
    engine = SimulatedEngine(SLOW)
    engine.submit(job("a", range(6), range(50)), 0.0)
    assert engine.load()["queue"] == ReplicaQueue(1, 0, 6)
    engine.advance(17.0)
    engine.submit(job("b", range(10), expected=4), 17.0)
    assert engine.load()["queue"] == ReplicaQueue(1, 1, 6)
    engine.advance(float("inf"))
    assert engine.load()["queue"] == ReplicaQueue(0, 0, 0) and engine.load()["cache"].use == 0


def stored_in(events: Sequence[KvEvent]) -> int:
    return sum(len(event.block_hashes) for event in events if isinstance(event, BlockStored))


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=10)
requests = st.lists(st.tuples(prompts, st.integers(1, 4), st.booleans()), max_size=12)


@given(requests)
def test_the_events_match_exactly_what_the_engine_would_find(
    asked: list[tuple[list[int], int, bool]],
) -> None:
    hasher = SegmentHasher(index_secret("secret"))
    held = CachedBlocks(hasher, "main", None, SEGMENT)
    engine = SimulatedEngine(SMALL)
    for number, (prompt, answer, then_wait) in enumerate(asked):
        engine.submit(job(str(number), prompt, [2] * answer), 0.0)
        if then_wait:
            held.apply(engine.advance(float("inf")).events)
    held.apply(engine.advance(float("inf")).events)
    known = set(held.keys())

    for number, (prompt, answer, _) in enumerate(asked):
        whole = [*prompt, *[2] * answer]
        keys = hasher.keys(Namespace("main"), whole, SEGMENT)
        depth = next((i for i, key in enumerate(keys) if key not in known), len(keys))
        found = engine.cached_tokens(whole)
        assert depth == found // SEGMENT, number


@given(requests)
def test_every_request_is_served_and_leaves_nothing_behind(
    asked: list[tuple[list[int], int, bool]],
) -> None:
    engine = SimulatedEngine(SMALL)
    jobs = [job(str(i), prompt, [2] * n) for i, (prompt, n, _) in enumerate(asked)]
    outcome = served(engine, *jobs)
    assert {each.ticket for each, _ in outcome.finished} == {each.ticket for each in jobs}
    assert [each.ticket for each, _ in outcome.first_tokens] == [each.ticket for each in jobs]
    assert engine.load()["cache"].use == 0
    assert engine.next_at is None


# Times that are exact in binary, so that steps taken together end just when single ones do.
EXACT = Hardware(
    prefill_rate=64.0,
    step_s=0.25,
    sequence_s=0.125,
    step_tokens=8,
    sequences=3,
    block_tokens=BLOCK,
    blocks=12,
)
hashed = st.tuples(
    st.integers(0, 200), st.integers(1, 9), st.integers(1, 12), st.lists(st.integers(0, 3))
)


def observed_history(
    engine: SimulatedEngine, asked: list[tuple[int, int, int, list[int]]], single: bool
) -> tuple[list[object], list[dict[str, Any]]]:
    """All that can be seen of an engine: what it reported, and its load at every arrival."""
    first: list[tuple[str, float]] = []
    last: list[tuple[str, float]] = []
    loads = []

    def advance(until: float) -> None:
        while single and engine.next_at is not None and engine.next_at <= until:
            note(engine.advance(engine.next_at))
        note(engine.advance(until))

    def note(outcome: StepOutcome) -> None:
        first.extend((each.ticket, at) for each, at in outcome.first_tokens)
        last.extend((each.ticket, at) for each, at in outcome.finished)

    for number, (at, prompt, answer, hashes) in enumerate(sorted(asked)):
        advance(at / 8)
        loads.append(engine.load())
        blocks = hashes[: (prompt + answer) // BLOCK]
        engine.submit(Job.hashed(str(number), prompt, answer, blocks), at / 8)
    while engine.next_at is not None:
        advance(engine.next_at + 1000.0)
    return [first, last, engine.generated], loads


TIERS = TierSettings(host_tokens=24, disk_tokens=64, host_load_rate=16.0, disk_load_rate=4.0)


@given(st.lists(hashed, max_size=10), st.sampled_from([None, TIERS]))
def test_combined_steps_give_the_same_result_as_single_steps(
    asked: list[tuple[int, int, int, list[int]]], tiers: TierSettings | None
) -> None:
    told, loads = observed_history(SimulatedEngine(EXACT, tiers), asked, single=False)
    told_singly, loads_singly = observed_history(SimulatedEngine(EXACT, tiers), asked, single=True)
    assert told == told_singly
    # means over many steps are rounded elsewhere
    assert [*map(flat, loads)] == [pytest.approx(flat(load)) for load in loads_singly]


def flat(load: dict[str, Any]) -> dict[str, Any]:
    """The load's fields with those of its parts, because `approx` compares flat mappings only."""
    parts = ("queue", "cache", "pace")
    own = {name: value for name, value in load.items() if name not in parts}
    return own | {
        f"{part}.{name}": value for part in parts for name, value in asdict(load[part]).items()
    }


def test_a_long_answer_is_taken_in_few_steps() -> None:
    engine = SimulatedEngine(EXACT)
    engine.submit(Job.hashed("a", 4, 20), 0.0)
    engine.advance(engine.next_at or 0.0)
    # a step of 0.25 + 0.125 s for each of the 19 tokens that are left
    assert engine.next_at == 0.3125 + 0.375
    assert engine.next_change_at == 0.3125 + 19 * 0.375
    assert names(engine.advance(100.0).finished) == [("a", 0.3125 + 19 * 0.375)]


def test_blocks_are_found_by_their_hashes_as_by_their_tokens() -> None:
    engine = SimulatedEngine(SLOW)
    served(engine, Job.hashed("a", 6, 1, [11, 12, 13]))
    again = Job.hashed("b", 7, 1, [11, 12, 14])
    served(engine, again)
    assert again.cached_tokens == 4
    assert engine.cached_blocks([11, 12, 13, 15]) == 3


def test_hashed_blocks_of_an_answer_are_found_by_the_next_turn() -> None:
    engine = SimulatedEngine(SLOW)
    served(engine, Job.hashed("a", 3, 6, [11, 12, 13, 14]))
    turn = Job.hashed("b", 10, 1, [11, 12, 13, 14, 15])
    served(engine, turn)
    assert turn.cached_tokens == 8


def test_blocks_without_hashes_are_never_cached_and_have_no_events() -> None:
    engine = SimulatedEngine(SMALL)
    outcome = served(engine, Job.hashed("a", 7, 4), Job.hashed("b", 7, 4))
    assert outcome.events == []
    assert [each.cached_tokens for each, _ in outcome.finished] == [0, 0]
