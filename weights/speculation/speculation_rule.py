"""Whether an engine should speculate at its load: learned from its steps by trying both ways.

From time to time a few decode steps run the other way, with or without drafts. They are compared
with the steps before and after them, in seconds per output token. Batches are distinguished by size
(1, 2, 3-4, 5-8, ...): a draft that helps a small batch, whose steps wait for memory, may slow down
a large one. A verdict requires 95% confidence, and the same to be overturned. Trials take about 1
% of a band's steps, more while verdicts are new or contradicted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from math import exp, log
from statistics import fmean
from typing import Literal

import msgspec

from weights.speculation.draft_yield import expected_tokens, ratio_interval

WhenSlower = Literal["keep", "stop"]

TRIAL_STEPS = 8
# A trial is abandoned after this many steps, if prompts disturb most of them.
LONGEST_TRIAL = 3 * TRIAL_STEPS
# Steps on each side of a trial: contexts grow, so only the steps before it would look too fast.
WINDOW_STEPS = 16
FIRST_GAP, LONGEST_GAP = 32, 1024
FEWEST_TRIALS, LATEST_TRIALS = 3, 10
# Number of latest passes in the acceptance rate.
MEMORY_PASSES = 10_000


@dataclass(frozen=True)
class EngineStep:
    """One step of the engine: `seconds` since the previous one, `tokens` that it brought to `batch`
    requests.

    `speculating` is None if the step is not representative: it also computed prompts, or came right
    after a switch.
    """

    batch: int
    seconds: float
    tokens: int
    speculating: bool | None


class SpeculationReport(msgspec.Struct, frozen=True):
    """The known state of an engine's speculation, at the latest batch size that was tried.

    `on`: it speculates. `speedup`: seconds per token without speculation over those with it.
    `losing`: that is below 1 with 95% confidence. `acceptance`: the probability that a draft token
    is right if those before it were; `expected_tokens_per_pass` follows from it, for comparison
    with the measured ones. None: unknown so far.
    """

    on: bool
    losing: bool
    speedup: float | None = None
    acceptance: float | None = None
    tokens_per_pass: float | None = None
    expected_tokens_per_pass: float | None = None


class Acceptance:
    """The acceptance of drafts, over about the latest `MEMORY_PASSES` passes.

    A draft token is tried if all before it in its draft were right. So accepted over tried ones is
    the maximum likelihood estimate for equal probabilities. More tokens per pass than it predicts:
    later draft tokens are better; fewer: worse.
    """

    def __init__(self) -> None:
        self._tokens = self._right = self._tried = 0.0
        self._passes: dict[int, float] = {}

    def add(self, passes: Iterable[tuple[int, int]]) -> None:
        """Add the drafted tokens of each request in a step, possibly none, and the kept ones."""
        of_step = list(passes)
        keep = max(0.0, 1 - len(of_step) / MEMORY_PASSES)
        self._tokens *= keep
        self._right *= keep
        self._tried *= keep
        self._passes = {drafted: weight * keep for drafted, weight in self._passes.items()}
        for drafted, accepted in of_step:
            self._tokens += 1 + accepted
            self._right += accepted
            self._tried += accepted + (accepted < drafted)
            self._passes[drafted] = self._passes.get(drafted, 0.0) + 1

    @property
    def rate(self) -> float | None:
        return self._right / self._tried if self._tried else None

    @property
    def tokens_per_pass(self) -> float | None:
        passes = sum(self._passes.values())
        return self._tokens / passes if passes else None

    @property
    def expected_tokens_per_pass(self) -> float | None:
        rate = self.rate
        if rate is None:
            return None
        tokens = sum(n * expected_tokens(rate, drafted) for drafted, n in self._passes.items())
        return tokens / sum(self._passes.values())


class SpeculationRule:
    """The rule. `when_slower`: whether a batch size at which speculation is slower continues with
    it."""

    def __init__(self, when_slower: WhenSlower) -> None:
        self._when_slower = when_slower
        self._bands: dict[int, _Band] = {}
        self._tried = _Band()
        self.acceptance = Acceptance()

    def speculates(self, batch: int) -> bool:
        """Return whether the next step, with this many requests, should speculate."""
        return self._band(batch).speculates_now

    def add(self, step: EngineStep) -> None:
        band = self._band(step.batch)
        if band.add(step, self._when_slower):
            self._tried = band

    def forget(self) -> None:
        """Forget what was learned under another load; the acceptance soon follows the new one."""
        self._bands.clear()

    def report(self, batch: int) -> SpeculationReport:
        band = self._band(batch)
        known = band if band.speedups else self._tried
        return SpeculationReport(
            on=band.speculates,
            losing=known.wins is False,
            speedup=known.speedup,
            acceptance=self.acceptance.rate,
            tokens_per_pass=self.acceptance.tokens_per_pass,
            expected_tokens_per_pass=self.acceptance.expected_tokens_per_pass,
        )

    def _band(self, batch: int) -> _Band:
        return self._bands.setdefault((batch - 1).bit_length(), _Band())


class _Phase(Enum):
    USUAL = auto()
    TRIAL = auto()
    AFTER = auto()


class _Band:
    """Batches of about one size. `wins` is the verdict, None before the first."""

    def __init__(self) -> None:
        self.speculates = True
        self.wins: bool | None = None
        self.speedups: deque[float] = deque(maxlen=LATEST_TRIALS)
        self._phase = _Phase.USUAL
        self._steps = 0
        self._gap = FIRST_GAP
        self._usual: deque[EngineStep] = deque(maxlen=WINDOW_STEPS)
        self._before: list[EngineStep] = []
        self._trial: list[EngineStep] = []

    @property
    def speculates_now(self) -> bool:
        return self.speculates != (self._phase is _Phase.TRIAL)

    @property
    def speedup(self) -> float | None:
        return exp(fmean(map(log, self.speedups))) if self.speedups else None

    def add(self, step: EngineStep, when_slower: WhenSlower) -> bool:
        """Add a step. Return true if it ended a trial with a result."""
        self._steps += 1
        if step.speculating == self.speculates_now:
            (self._trial if self._phase is _Phase.TRIAL else self._usual).append(step)
        whole = len(self._usual) == WINDOW_STEPS
        match self._phase:
            case _Phase.USUAL if whole and self._steps >= self._gap:
                self._before = list(self._usual)
                self._usual.clear()
                self._trial.clear()
                self._enter(_Phase.TRIAL)
            case _Phase.TRIAL if len(self._trial) == TRIAL_STEPS:
                self._enter(_Phase.AFTER)
            case _Phase.TRIAL if self._steps >= LONGEST_TRIAL:
                self._gap = min(2 * self._gap, LONGEST_GAP)
                self._enter(_Phase.USUAL)
            case _Phase.AFTER if whole:
                self._phase = _Phase.USUAL
                return self._compare(when_slower)
        return False

    def _enter(self, phase: _Phase) -> None:
        self._phase, self._steps = phase, 0

    def _compare(self, when_slower: WhenSlower) -> bool:
        usual, trial = _pace([*self._before, *self._usual]), _pace(self._trial)
        if not (usual and trial):
            return False
        speedup = trial / usual if self.speculates else usual / trial
        self.speedups.append(speedup)
        if len(self.speedups) >= FEWEST_TRIALS:
            surely = ratio_interval(list(self.speedups))
            if surely.low > 1 or surely.high < 1:
                self.wins = surely.low > 1
        contradicted = self.wins is not None and self.wins != (speedup > 1)
        self._gap = FIRST_GAP if contradicted else min(2 * self._gap, LONGEST_GAP)
        speculates = when_slower == "keep" or self.wins is not False
        if speculates != self.speculates:
            self.speculates = speculates
            self._usual.clear()
        return True


def _pace(steps: Iterable[EngineStep]) -> float:
    """Return seconds per token; 0 without tokens."""
    seconds = tokens = 0.0
    for step in steps:
        seconds += step.seconds
        tokens += step.tokens
    return seconds / tokens if tokens else 0.0
