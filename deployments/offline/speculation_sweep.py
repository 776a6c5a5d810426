"""Measure ways of speculation against no speculation, on engines of this machine.

Every round runs the same prompts on every arm. Arms are the engine without speculation and, for
each way, one engine that drafts k tokens a step, for every k and for 0. Rounds alternate their
order, so that disturbances affect all arms. With `apart`, one engine is loaded at a time, for a
model of which two engines do not fit. Speedups then include drift of the machine.

An engine that drafts fewer tokens than configured runs without its full CUDA graphs. With `exact`,
every k has a separate engine. The best of many arms may be best by chance, so `confirm` measures
the winner again, on newly loaded engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from common.errors import Problem
from deployments.offline.offline_engine import Generated, OfflineEngine, Tokens
from weights.evaluate.prompts import Conversation
from weights.speculation.draft_yield import SpeculationCandidate, acceptance_of, expected_tokens

WARM_UP_TOKENS = 8
# Drafts of these methods may be shortened while the engine runs; others have one length.
SHORTENED = frozenset({"ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "mtp"})
# By vLLM's model runner: all drafts of these cost the time of the longest one, or fail.
_EXACT_UNDER = frozenset({("draft_model", "V2"), ("ngram_gpu", "V1")})

Report = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """A speculative_config, and the draft lengths to try.

    `as_written`: only the longest, on an engine that always drafts this number.
    """

    name: str
    config: Mapping[str, Any]
    lengths: tuple[int, ...]
    as_written: bool = False

    @property
    def arms(self) -> tuple[int, ...]:
        """Return the tokens per step of each arm; 0: none, on the engine with speculation."""
        return (max(self.lengths),) if self.as_written else (0, *self.lengths)

    def engines(self, exact: bool, runner: str) -> list[Way]:
        """Return ways of one engine each: one per length if `exact`, or if the way requires it.

        Under vLLM's model `runner` V2 a draft model requires it: its short drafts cost the time of
        the longest one (`deployments.engine.vllm.patches.idle_drafts`). Under V1 `ngram_gpu` does:
        it fails on short drafts.
        """
        method, parallel = self.config.get("method"), self.config.get("parallel_drafting")
        exact = exact or bool(parallel) or (method, runner) in _EXACT_UNDER
        if not exact and (method in SHORTENED or str(method).endswith("_mtp")):
            return [self]
        return [replace(self, lengths=(drafted,), as_written=True) for drafted in self.lengths]

    def with_length(self, drafted: int) -> dict[str, Any]:
        return {**self.config, "num_speculative_tokens": drafted}


@dataclass(frozen=True)
class Trial:
    """Input of every arm. `max_tokens` applies to each answer."""

    model: str
    engine_args: Mapping[str, Any]
    env: Mapping[str, str]
    prompts: Sequence[Conversation]
    max_tokens: int
    rounds: int
    apart: bool
    exact: bool
    logs: Path


@dataclass(frozen=True)
class MeasuredArm:
    """The rounds of one arm and of the engine without speculation.

    `drafted`: the maximum tokens per step; 0: the engine could draft, but does not. `acceptance` is
    that of the way, measured on its shortest draft, and None on that arm.
    """

    way: str
    config: Mapping[str, Any]
    drafted: int
    runs: tuple[Generated, ...]
    without: tuple[Generated, ...]
    acceptance: float | None = None

    @property
    def name(self) -> str:
        return f"{self.way}, k={self.drafted}" if self.drafted else f"{self.way}, off"

    @property
    def candidate(self) -> SpeculationCandidate:
        pairs = zip(self.runs, self.without, strict=True)
        return SpeculationCandidate(
            self.name, self.drafted, tuple(rate(a) / rate(b) for a, b in pairs)
        )

    @property
    def tokens_per_s(self) -> float:
        return fmean(rate(run) for run in self.runs)

    @property
    def tpot_s(self) -> float:
        return fmean(run.tpot_s for run in self.runs)

    @property
    def acceptance_rate(self) -> float | None:
        """Share of drafted tokens that were kept, 0 to 1; None without drafts."""
        drafted = sum(run.drafted for run in self.runs)
        return sum(run.accepted for run in self.runs) / drafted if drafted else None

    @property
    def draft_length(self) -> int:
        """Tokens per draft, which may be fewer than requested; 0 without drafts."""
        drafts = sum(run.drafts for run in self.runs)
        return round(sum(run.drafted for run in self.runs) / drafts) if drafts else 0

    @property
    def tokens_per_draft(self) -> float | None:
        """Tokens per pass with a draft; None without drafts."""
        drafts = sum(run.drafts for run in self.runs)
        return 1 + sum(run.accepted for run in self.runs) / drafts if drafts else None

    @property
    def expected_per_draft(self) -> float | None:
        """Expected tokens per pass with a draft, from the way's acceptance; None if unknown."""
        if self.acceptance is None or not self.draft_length:
            return None
        return expected_tokens(self.acceptance, self.draft_length)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass and request, including passes without a draft."""
        tokens = sum(run.output_tokens for run in self.runs)
        return tokens / (tokens - sum(run.accepted for run in self.runs))

    @property
    def equal_answers(self) -> float:
        """Share of the answers, 0 to 1, that equal those without speculation, token by token."""
        pairs = list(zip(self.runs[0].outputs, self.without[0].outputs, strict=True))
        return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def rate(run: Generated) -> float:
    """Return tokens per second of all requests together, including the time of their prompts."""
    return run.output_tokens / run.seconds


@dataclass(frozen=True)
class Sweep:
    """Results. `failed`: ways whose engine could not be measured, and why."""

    measured: tuple[MeasuredArm, ...]
    failed: Mapping[str, str]
    without: tuple[Generated, ...]


def sweep(trial: Trial, ways: Sequence[Way], report: Report) -> Sweep:
    """Measure every way at each of its lengths.

    Raises Problem if the engine without speculation, with which all are compared, cannot be loaded.
    """
    measured: list[MeasuredArm] = []
    failed: dict[str, str] = {}
    without: list[Generated] = []
    with _Plain(trial, report).loaded() as plain:
        for way in ways:
            found: list[MeasuredArm] = []
            try:
                for engine in way.engines(trial.exact, plain.runner):
                    found += _measure(trial, engine, plain, report)
                    without += found[-1].without
            except Problem as error:
                failed[way.name] = error.message
            measured += with_acceptance(found)
    return Sweep(tuple(measured), failed, tuple(without))


def confirm(trial: Trial, won: MeasuredArm, report: Report) -> MeasuredArm:
    """Measure the winner on a newly loaded engine, next to another without speculation."""
    way = Way(won.way, won.config, (won.drafted,), as_written=True)
    with _Plain(trial, report).loaded() as plain:
        return _measure(trial, way, plain, report)[0]


class _Plain:
    """The engine without speculation: loaded all the time, or, with `apart`, measured first and
    then only remembered."""

    def __init__(self, trial: Trial, report: Report) -> None:
        self._trial = trial
        self._report = report
        self._engine: OfflineEngine | None = None
        self._remembered: list[Generated] = []
        self.prompts: list[Tokens] = []
        self.runner = ""  # V1 or V2, once it is loaded

    @contextmanager
    def loaded(self) -> Iterator[_Plain]:
        trial = self._trial
        self._report("loading the engine without speculation")
        with OfflineEngine.start(
            trial.model, trial.engine_args, trial.logs / "without.log", trial.env
        ) as engine:
            self.prompts = engine.chat_tokens(list(trial.prompts))
            self.runner = engine.made_by().runner
            _warm_up(engine, self.prompts)
            if not trial.apart:
                self._engine = engine
                yield self
                return
            for number in range(1, trial.rounds + 1):
                self._report(f"without speculation: round {number} of {trial.rounds}")
                self._remembered.append(engine.generate(self.prompts, trial.max_tokens))
        yield self

    def run(self, number: int) -> Generated:
        if self._engine is None:
            return self._remembered[number]
        return self._engine.generate(self.prompts, self._trial.max_tokens)


def _warm_up(engine: OfflineEngine, prompts: list[Tokens]) -> None:
    engine.generate(prompts[:1], WARM_UP_TOKENS)


def _measure(trial: Trial, way: Way, plain: _Plain, report: Report) -> list[MeasuredArm]:
    longest = max(way.lengths)
    arms = way.arms
    args = {**trial.engine_args, "speculative_config": way.with_length(longest)}
    report(f"loading the engine with {way.name}")
    log = trial.logs / f"{way.name.replace(' ', '-')}.log"
    runs: dict[int, list[Generated]] = {drafted: [] for drafted in arms}
    without: list[Generated] = []
    with OfflineEngine.start(trial.model, args, log, trial.env) as engine:
        _warm_up(engine, plain.prompts)

        def run(drafted: int | None) -> None:
            if drafted is None:
                without.append(plain.run(len(without)))
                return
            asked = None if drafted == longest else drafted
            answers = engine.generate(plain.prompts, trial.max_tokens, speculative_tokens=asked)
            runs[drafted].append(answers)

        order = [None, *arms]
        for number in range(trial.rounds):
            report(f"{way.name}: round {number + 1} of {trial.rounds}")
            for drafted in order if number % 2 == 0 else reversed(order):
                run(drafted)
    return [
        MeasuredArm(
            way.name,
            way.with_length(drafted) if drafted else {},
            drafted,
            tuple(runs[drafted]),
            tuple(without),
        )
        for drafted in arms
    ]


def with_acceptance(arms: list[MeasuredArm]) -> list[MeasuredArm]:
    """Return the arms with the acceptance of the shortest draft, which predicts longer ones."""
    told_by = next((arm for arm in arms if arm.tokens_per_draft is not None), None)
    if told_by is None or told_by.tokens_per_draft is None:
        return arms
    acceptance = acceptance_of(told_by.tokens_per_draft, told_by.draft_length)
    return [arm if arm is told_by else replace(arm, acceptance=acceptance) for arm in arms]
