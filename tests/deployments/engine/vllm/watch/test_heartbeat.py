"""What an engine's process says of its steps, and how long each may take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.learned.step_bound import TELLING_STEPS
from deployments.engine.vllm.watch.heartbeat import (
    NEW_STEP_S,
    CoreHeart,
    HeartbeatFile,
    LoopPhase,
    new_step_s,
)
from deployments.engine.vllm.watch.new_steps import StepsSeen
from tests.autoscaling.hand_clock import HandClock
from tests.fakes.steps import New, step

HIDDEN, STEP_S = 64, 0.01
DECODE = step(known={"one": (1, 7)})


class Params:
    """As vLLM's SamplingParams."""

    __struct_fields__ = ("temperature", "logprobs", "stop")

    def __init__(self, temperature: float = 1.0, logprobs: int | None = None) -> None:
        self.temperature, self.logprobs = temperature, logprobs
        self.stop: list[str] = []


class Engine:
    """On a GPU; its steps take STEP_S unless a test says otherwise."""

    def __init__(self, folder: Path, device_type: str = "cuda") -> None:
        path = folder / "heartbeat"
        path.touch()
        with path.open("r+b") as file:
            HeartbeatFile.lay_out(file.fileno())
        self.clock, self.file = HandClock(), HeartbeatFile(path)
        self.heart = CoreHeart(
            self.file, HIDDEN, new_step_s=new_step_s(device_type), clock=self.clock
        )

    def began(self, scheduled: Any) -> float:
        """The longest that the engine's step may take, in seconds."""
        self.heart.began(scheduled)
        return self.file.core.bound_s

    def steps(self, scheduled: Any, seconds: float = STEP_S, times: int = 1) -> float:
        for _ in range(times):
            bound_s = self.began(scheduled)
            self.clock.now += seconds
            self.heart.ended(scheduled)
        return bound_s


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.fixture
def decoding(engine: Engine) -> Engine:
    """An engine that knows how long a step takes which decodes for one request."""
    engine.steps(DECODE, times=2 * TELLING_STEPS)
    return engine


def test_a_step_of_a_known_kind_is_bounded_by_earlier_ones(decoding: Engine) -> None:
    assert decoding.began(DECODE) == pytest.approx(2 * STEP_S)


# what no step of `decoding` had
NEW: dict[str, Any] = {
    "more tokens": step(known={"one": (100, 7)}),
    "a longer context": step(known={"one": (1, 4000)}),
    "more requests": step(known={"one": (1, 7), "two": (1, 7)}),
    "drafts": step(known={"one": (1, 7)}, drafts={"one": [5, 6]}),
    "a sampling parameter": step(new={"two": New(1, 1, Params(logprobs=2))}),
}


@pytest.mark.parametrize("what", NEW)
def test_the_first_step_of_its_kind_may_compile(decoding: Engine, what: str) -> None:
    assert decoding.steps(NEW[what], 60.0) == NEW_STEP_S
    assert decoding.began(NEW[what]) < NEW_STEP_S
    assert decoding.file.core.phase is LoopPhase.STEP


def test_on_cpus_a_new_batch_size_needs_no_compilation(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "cpu")
    engine.steps(DECODE, times=2 * TELLING_STEPS)
    assert engine.began(NEW["more tokens"]) < NEW_STEP_S


def test_the_time_of_compiling_is_not_learned(decoding: Engine) -> None:
    decoding.steps(NEW["more tokens"], 60.0)
    assert decoding.began(DECODE) == pytest.approx(2 * STEP_S)


def in_three_steps(engine: Engine, name: str, params: Params) -> list[bool]:
    """Whether each of the steps that compute a prompt is new."""
    parts = (
        step(new={name: New(tokens=1, prompt=8, params=params)}),
        step(known={name: (1, 6)}),
        step(known={name: (1, 7)}),
    )
    return [engine.steps(part) == NEW_STEP_S for part in parts]


def test_a_sampling_parameter_makes_only_the_sampling_step_new(decoding: Engine) -> None:
    """The first parts of a prompt sample nothing: nothing is compiled for the sampler yet."""
    in_three_steps(decoding, "two", Params())
    assert in_three_steps(decoding, "three", Params(logprobs=2)) == [False, False, True]
    assert in_three_steps(decoding, "four", Params(logprobs=5)) == [False, False, False]


def test_greedy_and_random_sampling_are_two_kinds(decoding: Engine) -> None:
    for n, temperature in enumerate((0.0, 1.0, 0.7)):
        asked = {f"{n}": New(1, 1, Params(temperature))}
        assert decoding.steps(step(new=asked)) == NEW_STEP_S
        asked = {f"{n} again": New(1, 1, Params(temperature))}
        assert decoding.steps(step(new=asked)) < 1.0


def test_a_request_that_left_before_it_sampled_makes_no_step_new(decoding: Engine) -> None:
    decoding.steps(step(new={"two": New(1, 8, Params(logprobs=2))}))
    decoding.steps(step(known={"one": (1, 7)}, finished=["two"]))
    assert decoding.steps(step(known={"two": (1, 7)})) < 1.0


def test_a_step_that_compiles_delays_the_one_before_it(decoding: Engine) -> None:
    """Two are under way, and the second is compiled for when it is begun."""
    decoding.began(DECODE)
    assert decoding.began(NEW["more tokens"]) == NEW_STEP_S
    decoding.clock.now += 60.0
    for _ in range(2):
        decoding.heart.ended(DECODE)
    assert decoding.began(DECODE) == pytest.approx(2 * STEP_S)


def test_of_two_steps_under_way_the_second_begins_when_the_first_has_ended(
    engine: Engine,
) -> None:
    engine.steps(DECODE)
    engine.began(DECODE)
    for _ in range(2 * TELLING_STEPS):
        engine.began(DECODE)
        engine.clock.now += STEP_S
        engine.heart.ended(DECODE)
    assert engine.file.core.bound_s == pytest.approx(2 * STEP_S)


@pytest.mark.parametrize("until", ["began", "ended"])
def test_each_step_produces_two_heartbeats(decoding: Engine, until: str) -> None:
    beats = decoding.file.core.beats
    tell: dict[str, Callable[[Any], None]] = {
        "began": decoding.heart.began,
        "ended": decoding.heart.ended,
    }
    tell["began"](DECODE)
    if until == "ended":
        tell["ended"](DECODE)
    assert decoding.file.core.beats == beats + (1 if until == "began" else 2)


sizes = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 4096), st.integers(0, 9)))


@given(st.lists(sizes.filter(bool), min_size=1, max_size=8))
def test_a_step_counts_as_new_only_once(steps: list[dict[str, tuple[int, int]]]) -> None:
    seen = StepsSeen()
    for known in steps:
        seen.ended(seen.marks(step(known=known)))
    for known in steps:
        assert not seen.is_new(seen.marks(step(known=known)))
