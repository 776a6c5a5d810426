"""Ways to speculate, measured against no speculation on engines of this machine.

Every round runs the same prompts on every arm: the engine without speculation, and, of each way,
one engine that drafts k tokens a step, for every k and for none at all. Rounds alternate their
order, so what the machine does beside it falls on all. With `apart`, for a model of which two
engines do not fit, only one is loaded at a time; drift of the machine is then in the speedups.

An engine that drafts fewer tokens than it was made for runs without its full CUDA graphs: with
`exact`, every k has an engine of its own. Of many arms the luckiest looks best, so `confirm`
measures what won once more, on engines that are loaded for that.
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
from weights.prompts import Conversation
from weights.speculation import SpeculationCandidate, acceptance_of, expected_tokens

WARM_UP_TOKENS = 8
# Drafts of these may be shortened while the engine runs; those of others have one length.
SHORTENED = frozenset({"ngram", "draft_model", "eagle", "eagle3", "mtp"})

Report = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """A speculative_config, and the numbers of tokens to try in the place of its own.
    `as_written`: only the longest, on an engine that is never told to draft another number."""

    name: str
    config: Mapping[str, Any]
    lengths: tuple[int, ...]
    as_written: bool = False

    @property
    def arms(self) -> tuple[int, ...]:
        """Tokens a step on each arm; 0: none, on the engine that could."""
        return (max(self.lengths),) if self.as_written else (0, *self.lengths)

    def engines(self, exact: bool) -> list[Way]:
        """The same as ways of one engine each: `exact`, or where it has to be, one a length."""
        method, parallel = self.config.get("method"), self.config.get("parallel_drafting")
        if not exact and not parallel and (method in SHORTENED or str(method).endswith("_mtp")):
            return [self]
        return [replace(self, lengths=(drafted,), as_written=True) for drafted in self.lengths]

    def with_length(self, drafted: int) -> dict[str, Any]:
        return {**self.config, "num_speculative_tokens": drafted}


@dataclass(frozen=True)
class Trial:
    """What every arm is given. `max_tokens` is of each answer."""

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
    """One arm's rounds beside those of the engine without speculation. `drafted` tokens a step at
    most, 0: the engine could, and does not. `acceptance` is the way's own, from its shortest
    draft, and None on the arm that it was taken from."""

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
        """Drafted tokens that were kept, 0 to 1; None where none was drafted."""
        drafted = sum(run.drafted for run in self.runs)
        return sum(run.accepted for run in self.runs) / drafted if drafted else None

    @property
    def draft_length(self) -> int:
        """Tokens a draft had, which may be fewer than were asked for; 0 without drafts."""
        drafts = sum(run.drafts for run in self.runs)
        return round(sum(run.drafted for run in self.runs) / drafts) if drafts else 0

    @property
    def tokens_per_draft(self) -> float | None:
        """Tokens that a pass with a draft yielded; None without drafts."""
        drafts = sum(run.drafts for run in self.runs)
        return 1 + sum(run.accepted for run in self.runs) / drafts if drafts else None

    @property
    def expected_per_draft(self) -> float | None:
        """What a pass with a draft should yield by the way's acceptance; None where unknown."""
        if self.acceptance is None or not self.draft_length:
            return None
        return expected_tokens(self.acceptance, self.draft_length)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass yielded to each request in it, passes without a draft included."""
        tokens = sum(run.output_tokens for run in self.runs)
        return tokens / (tokens - sum(run.accepted for run in self.runs))

    @property
    def equal_answers(self) -> float:
        """Share of the answers, 0 to 1, that are those without speculation, token by token."""
        pairs = list(zip(self.runs[0].outputs, self.without[0].outputs, strict=True))
        return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def rate(run: Generated) -> float:
    """Tokens per second of all requests together, their prompts' time included."""
    return run.output_tokens / run.seconds


@dataclass(frozen=True)
class Sweep:
    """`failed`: ways whose engine could not be measured, and why."""

    measured: tuple[MeasuredArm, ...]
    failed: Mapping[str, str]
    without: tuple[Generated, ...]


def sweep(trial: Trial, ways: Sequence[Way], report: Report) -> Sweep:
    """Every way at each of its lengths. Raises Problem if the engine without speculation, to
    which all are compared, cannot be loaded."""
    measured: list[MeasuredArm] = []
    failed: dict[str, str] = {}
    without: list[Generated] = []
    with _Plain(trial, report).loaded() as plain:
        for way in ways:
            found: list[MeasuredArm] = []
            try:
                for engine in way.engines(trial.exact):
                    found += _measure(trial, engine, plain, report)
                    without += found[-1].without
            except Problem as error:
                failed[way.name] = error.message
            measured += with_acceptance(found)
    return Sweep(tuple(measured), failed, tuple(without))


def confirm(trial: Trial, won: MeasuredArm, report: Report) -> MeasuredArm:
    """What won, on an engine that is made for it alone, beside another without speculation."""
    way = Way(won.way, won.config, (won.drafted,), as_written=True)
    with _Plain(trial, report).loaded() as plain:
        return _measure(trial, way, plain, report)[0]


class _Plain:
    """The engine without speculation: held while all others come and go, or, `apart`, asked
    before them and then only remembered."""

    def __init__(self, trial: Trial, report: Report) -> None:
        self._trial = trial
        self._report = report
        self._engine: OfflineEngine | None = None
        self._remembered: list[Generated] = []
        self.prompts: list[Tokens] = []

    @contextmanager
    def loaded(self) -> Iterator[_Plain]:
        trial = self._trial
        self._report("loading the engine without speculation")
        with OfflineEngine.start(
            trial.model, trial.engine_args, trial.logs / "without.log", trial.env
        ) as engine:
            self.prompts = engine.chat_tokens(list(trial.prompts))
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
    """The shortest draft tells the acceptance by which the longer ones are foretold."""
    told_by = next((arm for arm in arms if arm.tokens_per_draft is not None), None)
    if told_by is None or told_by.tokens_per_draft is None:
        return arms
    acceptance = acceptance_of(told_by.tokens_per_draft, told_by.draft_length)
    return [arm if arm is told_by else replace(arm, acceptance=acceptance) for arm in arms]
