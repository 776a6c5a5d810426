"""A constraint is followed as an answer would, on a clock that only counts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deployments.engine.vllm.grammars.grammar_follow import (
    IN_A_ROW,
    RISING_TOKENS,
    TOKEN_MS,
    TOKENS,
    TRIES,
    UNFOLLOWED_SHARE,
    CoreSlowness,
    Follower,
    Vocabulary,
    expected_ms,
    highest_ms,
    most_token_ms,
    rises,
)

CONTEXT = 131_072
TEXTS = ["<eos>", "a", "b", "aaaa", " ", "   ", '"', "}", '",', "end"]
EOS, A, B, LONG, QUOTE = 0, 1, 2, 3, 6


class Tokenizer:
    eos_token_id = EOS
    all_special_ids = (EOS,)

    def __len__(self) -> int:
        return len(TEXTS)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [TEXTS[token] for token in ids]


class SilentTokenizer(Tokenizer):
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        raise NotImplementedError


VOCABULARY = Vocabulary.of(Tokenizer(), len(TEXTS))
WAYS = len(VOCABULARY.ways())


class Row:
    """As a row of a mask, a tensor of torch."""

    def __init__(self) -> None:
        self.words = np.zeros(1, dtype=np.int32)

    def numpy(self) -> Any:
        return self.words


@dataclass
class Constraint:
    """As vLLM's StructuredOutputGrammar. `allows` and `ms` are functions of the tokens so far."""

    allows: Callable[[list[int]], set[int]] = lambda so_far: {A, B, LONG, QUOTE}
    ms: Callable[[list[int]], float] = lambda so_far: 0.0
    accepts: bool = True
    answer: list[int] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def fill_bitmask(self, mask: Sequence[Row], index: int) -> None:
        self.now += self.ms(self.answer) / 1000
        mask[index].words[0] = sum(1 << token for token in self.allows(self.answer))

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self.answer += tokens
        return self.accepts

    def is_terminated(self) -> bool:
        return EOS in self.answer

    def reset(self) -> None:
        self.answers.append(self.answer)
        self.answer = []


def followed(constraint: Constraint, tokens: int = TOKENS) -> tuple[float, int]:
    """Return the milliseconds per token, and how many tokens were followed."""
    follower = Follower(VOCABULARY, CONTEXT, TOKEN_MS, constraint.clock)
    return follower.token_ms(constraint, [Row()], tokens), follower.followed


def test_a_quick_constraint_is_followed_for_hundreds_of_tokens_on_each_path() -> None:
    ms, tokens = followed(Constraint(ms=lambda so_far: 0.1))
    assert ms == pytest.approx(0.1)
    assert tokens == WAYS * TOKENS


def test_a_slow_constraint_is_followed_for_a_few_tokens_only() -> None:
    ms, tokens = followed(Constraint(ms=lambda so_far: 142.0))
    assert ms > TOKEN_MS
    assert tokens == TRIES


@pytest.mark.parametrize("times", [1, TRIES - 1])
def test_a_core_that_is_busy_for_some_tries_does_not_make_a_constraint_slow(times: int) -> None:
    slow = iter([300.0] * times)
    assert followed(Constraint(ms=lambda so_far: next(slow, 0.1)))[0] == pytest.approx(0.1)


@pytest.mark.parametrize(("slowness", "fits"), [(1.0, False), (1.6, True)])
def test_a_token_counts_as_on_a_quiet_core(slowness: float, fits: bool) -> None:
    constraint = Constraint(ms=lambda so_far: 1.3 * TOKEN_MS)
    follower = Follower(VOCABULARY, CONTEXT, TOKEN_MS, constraint.clock, lambda: slowness)
    assert (follower.token_ms(constraint, [Row()]) <= TOKEN_MS) is fits


def test_an_interrupt_between_tokens_does_not_excuse_them() -> None:
    slowness = itertools.cycle((1.0, 2.0))
    constraint = Constraint(ms=lambda so_far: 1.3 * TOKEN_MS)
    follower = Follower(VOCABULARY, CONTEXT, TOKEN_MS, constraint.clock, lambda: next(slowness))
    assert follower.token_ms(constraint, [Row()]) > TOKEN_MS


def test_the_slowness_of_a_core_is_bounded_and_shared_with_forked_processes() -> None:
    spent_s, now = 0.010, 0.0

    def clock() -> float:
        nonlocal now
        now += spent_s
        return now

    slowness = CoreSlowness(clock)
    assert slowness() == 1.0
    spent_s = 0.013
    assert slowness() == pytest.approx(1.3)
    if (child := os.fork()) == 0:
        spent_s = 0.0065
        slowness()
        os._exit(0)
    os.waitpid(child, 0)
    assert slowness() == pytest.approx(2.0)
    spent_s = 5.0
    assert slowness() == 2.0


def test_a_repeated_path_chooses_the_same_tokens() -> None:
    constraint = Constraint(ms=lambda so_far: 10.0 if len(so_far) >= 100 else 0.01)
    assert followed(constraint)[0] > TOKEN_MS
    first, *again = (one for one in [*constraint.answers, constraint.answer] if one)
    assert again == [first] * (TRIES - 1)


@pytest.mark.parametrize("slow", [A, LONG, QUOTE])
def test_a_constraint_that_is_slow_after_one_kind_of_token_is_found(slow: int) -> None:
    def ms(so_far: list[int]) -> float:
        return 10.0 if so_far[-20:].count(slow) >= 10 else 0.01

    assert followed(Constraint(ms=ms))[0] > TOKEN_MS


def test_one_token_is_repeated_while_it_is_allowed() -> None:
    constraint = Constraint()
    followed(constraint)
    assert any(len(one) == TOKENS and len(set(one)) == 1 for one in constraint.answers)


def test_white_space_is_avoided_where_other_tokens_are_allowed() -> None:
    constraint = Constraint(allows=lambda so_far: {4, 5, A})
    followed(constraint)
    assert sum(set(one) == {A} for one in constraint.answers) >= WAYS - 2


def test_a_constraint_that_ends_begins_again() -> None:
    constraint = Constraint(allows=lambda so_far: {A} if len(so_far) < 3 else {EOS})
    assert followed(constraint) == (0.0, WAYS * TOKENS)
    assert [A, A, A] in constraint.answers


def test_the_cost_of_a_constraint_that_fails_is_the_cost_until_then() -> None:
    assert followed(Constraint(ms=lambda so_far: 0.5, accepts=False)) == (0.0, 0)


def test_a_rising_cost_is_followed_further_and_rejected_for_its_extrapolation() -> None:
    ms, tokens = followed(Constraint(ms=lambda so_far: len(so_far) / 400))
    assert ms > TOKEN_MS
    assert tokens == RISING_TOKENS


def test_an_answer_is_never_followed_beyond_the_context() -> None:
    constraint = Constraint(ms=lambda so_far: len(so_far) / 40)
    follower = Follower(VOCABULARY, 40, TOKEN_MS, constraint.clock)
    assert follower.token_ms(constraint, [Row()]) < 1.0
    assert follower.followed == WAYS * 40


@given(st.integers(1, 4096).map(lambda count: count / 1000), st.sampled_from([1.0, 1.5, 2.0, 3.0]))
def test_a_cost_that_grows_as_a_power_of_the_length_is_extrapolated(
    factor: float, power: float
) -> None:
    ms = [TOKEN_MS * factor * (at / TOKENS) ** power for at in range(TOKENS)]
    assume(rises(ms))
    expected = TOKEN_MS * factor * (8192 / TOKENS) ** power
    assert expected_ms(ms, 8192) == pytest.approx(expected, rel=0.35)


@given(st.lists(st.floats(0, 100), max_size=300), st.integers(1, CONTEXT))
def test_the_expected_cost_is_never_below_the_observed_one(ms: list[float], tokens: int) -> None:
    assert expected_ms(ms, tokens) >= highest_ms(ms) >= sum(ms[:IN_A_ROW]) / IN_A_ROW - 1e-9


@given(st.floats(0, 100), st.integers(0, 255))
def test_one_slow_token_does_not_count_as_a_rising_cost(ms: float, at: int) -> None:
    assert not rises([0.01] * at + [ms] + [0.01] * (255 - at))


@pytest.mark.parametrize("tokenizer", [Tokenizer(), SilentTokenizer()])
def test_a_constraint_is_followed_with_any_tokenizer(tokenizer: Tokenizer) -> None:
    """A model may also have more tokens than its tokenizer."""
    vocabulary = Vocabulary.of(tokenizer, len(TEXTS) + 5)
    slow = Constraint(ms=lambda so_far: 10.0)
    follower = Follower(vocabulary, CONTEXT, TOKEN_MS, slow.clock)
    assert follower.token_ms(slow, [Row()]) > TOKEN_MS
    quick = Constraint()
    follower = Follower(vocabulary, CONTEXT, TOKEN_MS, quick.clock)
    assert follower.token_ms(quick, [Row()]) == 0.0
    assert follower.followed == WAYS * TOKENS


def of_parts(parts: Sequence[Constraint], in_time: int) -> tuple[float, int]:
    """Return the milliseconds per token of the slowest part, and how many were compiled. The time
    is over after the first `in_time` parts."""
    compiled: list[Constraint] = []

    def compiles(part: Constraint) -> Constraint:
        compiled.append(part)
        return part

    follower = Follower(VOCABULARY, CONTEXT, TOKEN_MS, lambda: sum(part.now for part in parts))
    found = follower.parts_ms(
        [partial(compiles, part) for part in parts], [Row()], lambda: len(compiled) >= in_time
    )
    return found, len(compiled)


def test_the_slowest_part_of_a_constraint_counts() -> None:
    parts = [Constraint(ms=lambda so_far, ms=ms: ms) for ms in (0.1, 0.3, 0.2)]  # type: ignore[misc]
    found, compiled = of_parts(parts, in_time=100)
    assert found == pytest.approx(0.3)
    assert compiled == 3
    assert of_parts([], in_time=0) == (0.0, 0)


def test_a_constraint_of_many_parts_is_admitted_and_counts_as_costly() -> None:
    """A grammar of a hundred rules is ordinary, and each part compiles all of it."""
    parts = [Constraint(ms=lambda so_far: 0.1) for _ in range(200)]
    assert of_parts(parts, in_time=20) == (UNFOLLOWED_SHARE * TOKEN_MS, 20)


def test_a_slow_part_is_found_among_any_number_of_parts() -> None:
    parts = [Constraint(ms=lambda so_far, at=at: 50.0 if at else 0.1) for at in range(100)]  # type: ignore[misc]
    found, compiled = of_parts(parts, in_time=20)
    assert found > TOKEN_MS
    assert compiled == 2


def test_a_larger_vocabulary_may_take_longer() -> None:
    assert most_token_ms(32_000) == most_token_ms(49_152) == TOKEN_MS
    assert most_token_ms(151_936) > 2 * TOKEN_MS
