"""An engine ends a request whose masks take long. All others continue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.request import StructuredOutputRequest

from deployments.engine.vllm.constraints.constraint_fields import Sent
from deployments.engine.vllm.grammars import constraints, mask_watch
from deployments.engine.vllm.grammars.grammar_follow import TOKEN_MS
from deployments.engine.vllm.grammars.mask_watch import (
    ALL_SLOW_S,
    CLIENT_REQUEST,
    MOST_SLOW,
    QUICK_STEPS,
    SLOW_MASKS,
    SLOW_S,
    MaskTimes,
    MaskWatch,
    WatchedGrammar,
)

WORDS = 2
DRAFTS = 2


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For one test."""
    for name in ("_create_grammar", "grammar_bitmask", "accept_tokens"):
        monkeypatch.setattr(StructuredOutputManager, name, getattr(StructuredOutputManager, name))
    mask_watch.register.cache_clear()
    mask_watch.register()
    yield
    mask_watch.register.cache_clear()


@dataclass
class Grammar:
    """One of vLLM's, which spends CPU seconds of a clock on each call."""

    fill_s: float = 0.0
    accept_s: float = 0.0
    now: float = 0.0
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def clock(self) -> float:
        return self.now

    def _called(self, name: str, seconds: float) -> None:
        self.calls[name] += 1
        self.now += seconds

    def fill_bitmask(self, bitmask: Any, index: int) -> None:
        self._called("fill", self.fill_s)
        bitmask[index].fill_(1)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self._called("accept", self.accept_s)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        self._called("validate", self.accept_s)
        return tokens

    def rollback(self, num_tokens: int) -> None:
        self._called("rollback", 0.0)

    def is_terminated(self) -> bool:
        return False


class Backend:
    """`grammars`: those of the requests, in order."""

    def __init__(self, grammars: list[Grammar]) -> None:
        self._left = iter(grammars)

    def compile_grammar(self, *args: Any, **kwargs: Any) -> Grammar:
        return next(self._left)

    def allocate_token_bitmask(self, rows: int) -> Any:
        return torch.zeros((rows, WORDS), dtype=torch.int32)


class Engine:
    """vLLM's manager, and its scheduler's calls of each step."""

    def __init__(
        self,
        grammars: dict[str, Grammar],
        drafts: int = 0,
        number_of: Callable[[str], Any] = lambda name: name,
    ) -> None:
        """`number_of`: the number of the client's request that a sequence belongs to."""
        manager = StructuredOutputManager.__new__(StructuredOutputManager)
        manager.backend = Backend(list(grammars.values()))
        manager.reasoner_cls = None
        manager.enable_in_reasoning = False
        manager.vllm_config = SimpleNamespace(
            num_speculative_tokens=drafts,
            scheduler_config=SimpleNamespace(max_num_seqs=max(256, len(grammars))),
            model_config=SimpleNamespace(is_diffusion=False, get_vocab_size=lambda: 32 * WORDS),
        )
        manager.fill_bitmask_parallel_threshold = 128
        manager.fill_bitmask_parallel_batch_size = 16
        manager._grammar_bitmask = None
        manager._full_mask = torch.tensor(-1, dtype=torch.int32)
        self.manager, self._drafts = manager, drafts
        self.requests = {
            name: self._request(name, number_of(name), one) for name, one in grammars.items()
        }
        self.ended: set[str] = set()

    def _request(self, name: str, number: Any, grammar: Grammar) -> Any:
        params = StructuredOutputsParams(regex="a")
        extra = {CLIENT_REQUEST: number}
        request = SimpleNamespace(
            request_id=name,
            use_structured_output=True,
            sampling_params=SamplingParams(structured_outputs=params, extra_args=extra),
            structured_output_request=StructuredOutputRequest(params),
            prompt_token_ids=[],
            all_token_ids=[],
            stop_reason=None,
        )
        watched = self.manager._create_grammar(request)
        watched.clock = grammar.clock
        request.structured_output_request.grammar = watched
        return request

    def step(self) -> Any:
        """Return the masks of a step of all requests that have not ended."""
        names = [name for name in self.requests if name not in self.ended]
        drafts = {name: [1] * self._drafts for name in names} if self._drafts else {}
        for name, drafted in drafts.items():
            self.manager.validate_tokens(self.requests[name], drafted)
        masks = self.manager.grammar_bitmask(self.requests, names, drafts)
        for name in names:
            if not self.manager.accept_tokens(self.requests[name], [1] * (1 + self._drafts)):
                self.ended.add(name)
        return masks

    def reason(self, name: str) -> Any:
        return self.requests[name].stop_reason


@pytest.mark.parametrize("drafts", [0, DRAFTS])
@pytest.mark.parametrize(("fill_s", "accept_s"), [(SLOW_S, 0.0), (0.0, SLOW_S), (0.03, 0.03)])
def test_only_the_request_whose_steps_are_slow_is_ended(
    drafts: int, fill_s: float, accept_s: float
) -> None:
    engine = Engine({"slow": Grammar(fill_s, accept_s), "quick": Grammar(0.001, 0.001)}, drafts)
    for _ in range(MOST_SLOW + 1):
        engine.step()
    assert engine.ended == {"slow"}
    assert engine.reason("slow").startswith(SLOW_MASKS)
    assert engine.reason("quick") is None
    assert engine.step().shape[0] == 1 + drafts


def test_an_ended_request_takes_no_more_time() -> None:
    grammar = Grammar(fill_s=1.0)
    engine = Engine({"slow": grammar})
    while not engine.ended:
        masks = engine.step()
    assert grammar.calls["fill"] <= MOST_SLOW
    assert (masks == -1).all()


@pytest.mark.parametrize("name", ["{}_chat-1", "cmpl-1-{}"])
def test_the_sequences_and_prompts_of_a_request_count_together_and_end_together(name: str) -> None:
    names = [name.format(index) for index in range(8)]
    part_s = 1.5 * SLOW_S / len(names)
    grammars = {name: Grammar(part_s) for name in names} | {"8_chat-2": Grammar(part_s)}
    engine = Engine(grammars, number_of=lambda name: int(name in names))
    for _ in range(MOST_SLOW + 1):
        engine.step()
    assert engine.ended == set(names)
    assert engine.reason(names[0]) == f"{SLOW_MASKS}{1000 * part_s:.1f}"


def test_many_prompts_with_an_ordinary_constraint_are_never_ended() -> None:
    engine = Engine({f"cmpl-1-{index}": Grammar(0.0005) for index in range(120)}, 0, lambda name: 1)
    for _ in range(100):
        engine.step()
    assert not engine.ended


def costly(count: int) -> dict[str, Grammar]:
    """Return requests each of which takes less than a slow step, and more than a trial allows."""
    return {f"costly-{number}": Grammar(1.2 * ALL_SLOW_S / count) for number in range(count)}


@pytest.mark.parametrize("count", [3, 10, 20])
def test_only_requests_that_jointly_slow_a_step_are_ended(
    count: int,
) -> None:
    ordinary = {f"ordinary-{number}": Grammar(0.8 * TOKEN_MS / 1000) for number in range(5)}
    engine = Engine({**ordinary, **costly(count)})
    for _ in range(MOST_SLOW + 1):
        engine.step()
    assert engine.ended == set(costly(count))
    spent_s = sum(grammar.fill_s for grammar in ordinary.values())
    assert spent_s < ALL_SLOW_S


def test_a_single_request_above_the_bound_of_trials_is_not_ended() -> None:
    engine = Engine({"costly": Grammar(2 * TOKEN_MS / 1000), "quick": Grammar(0.0001)})
    for _ in range(100):
        engine.step()
    assert not engine.ended


def test_requests_of_a_large_batch_are_also_watched() -> None:
    """vLLM fills the masks of more than 128 requests in several threads."""
    from concurrent.futures import ThreadPoolExecutor

    quick = {f"quick-{number}": Grammar(0.001) for number in range(130)}
    engine = Engine({**quick, "slow": Grammar(SLOW_S)})
    with ThreadPoolExecutor(2) as engine.manager.executor_for_fillmask:
        for _ in range(MOST_SLOW + 1):
            engine.step()
    assert engine.ended == {"slow"}


def test_a_quick_request_is_never_ended_however_long_its_answer_is() -> None:
    engine = Engine({"quick": Grammar(SLOW_S / 3, SLOW_S / 3)})
    for _ in range(1000):
        engine.step()
    assert not engine.ended


def test_a_slow_first_step_alone_ends_nothing() -> None:
    """A backend may compile in it."""
    grammar = Grammar(fill_s=10.0)
    engine = Engine({"a": grammar})
    engine.step()
    grammar.fill_s = 0.001
    for _ in range(100):
        engine.step()
    assert not engine.ended


def test_an_answer_that_no_token_matches_is_not_called_slow() -> None:
    grammar = Grammar()
    engine = Engine({"a": grammar})
    grammar.accept_tokens = lambda request_id, tokens: False  # type: ignore[method-assign]
    engine.step()
    assert engine.ended == {"a"}
    assert engine.reason("a") is None


def test_rejected_drafts_are_rolled_back_while_a_request_is_watched() -> None:
    grammar = Grammar(0.001, 0.001)
    Engine({"a": grammar}, DRAFTS).step()
    assert grammar.calls["rollback"] == 1


@pytest.mark.parametrize(
    ("steps_s", "is_over"),
    [
        ([SLOW_S] * MOST_SLOW, True),
        ([SLOW_S] * (MOST_SLOW - 1), False),
        ([SLOW_S / 2] * 100, False),
        ([5.0], False),
        ([5.0, 5.0], True),
        ([SLOW_S, 0.0, SLOW_S, 0.0, SLOW_S], True),
    ],
)
def test_a_few_slow_steps_end_a_request_and_very_slow_ones_earlier(
    steps_s: list[float], is_over: bool
) -> None:
    times = MaskTimes()
    for seconds in steps_s:
        times.spend(seconds)
        times.end_step()
    assert times.is_over == is_over


def test_finished_requests_are_forgotten() -> None:
    watch = MaskWatch()
    first: Callable[[], WatchedGrammar] = lambda: watch.watched("a", Grammar())  # noqa: E731
    for _ in range(MOST_SLOW):
        first().times.spend(SLOW_S)
        watch.end_step(["a"])
    assert not first().times.is_over


def test_the_error_of_an_ended_answer_is_a_client_error_that_names_the_field() -> None:
    ended = SimpleNamespace(outputs=[SimpleNamespace(stop_reason=f"{SLOW_MASKS}61.5")])
    assert constraints.slow_mask_ms(ended) == 61.5
    for reason in ("\n", 2, None):
        other = SimpleNamespace(outputs=[SimpleNamespace(stop_reason=reason)])
        assert constraints.slow_mask_ms(other) is None
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    with pytest.raises(constraints.Unfit, match=r"61\.5 ms of CPU time") as error:
        constraints.refuse_slow(params, 61.5)
    assert error.value.parameter == "structured_outputs.regex"


def test_slow_steps_are_forgotten_after_many_quick_ones() -> None:
    times = MaskTimes()

    def step(seconds: float) -> None:
        times.spend(seconds)
        times.end_step()

    for _ in range(2 * MOST_SLOW):
        step(SLOW_S)
        for _ in range(QUICK_STEPS):
            step(0.0)
    assert not times.is_over
    for _ in range(MOST_SLOW):
        step(SLOW_S)
        step(0.0)
    assert times.is_over


def test_the_engine_gets_a_simplified_regular_expression_and_its_field_is_still_known() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(a*)*b"))
    sent = Sent({"regex": "(a*)*b"})
    constraints.refuse_huge(params)
    assert params.structured_outputs.regex == "(a*)b"
    assert sent.field_of("regex", "(a*)b") == "structured_outputs.regex"


def test_a_request_without_a_constraint_is_not_watched() -> None:
    request: Any = SimpleNamespace(use_structured_output=False, structured_output_request=None)
    manager = object.__new__(StructuredOutputManager)
    assert manager.accept_tokens(request, [1])
