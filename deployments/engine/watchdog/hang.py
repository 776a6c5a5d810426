"""Detection of a hung engine from observations, without a clock or a process.

Time counts only while no thread of the engine computes, waits for a core or for a disk. So an
engine on an overloaded machine is never suspected because of the load: a hang is found later there.
Four kinds are distinguished:

    stopped   a process is in the kernel's state T, which Antefix never requests
    a step    the current step exceeds the bound for its size (`autoscaling.learned.step_bound`)
    silence   the engine is idle, and does not answer its replica, whose event loop runs
    mute      it runs steps, between which it would answer, but does not answer

A suspect gets no requests while another replica can take them, and is healthy again when it makes
progress. The same applies to a hung engine, unless it is stopped (`hung_engine` in the fleet file).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from deployments.engine.vllm.watch.heartbeat import LoopPhase

PERIOD_S = 0.25
# A watcher that looks this late was frozen or starved, and ignores the time in between.
LATE_S = 1.0


@dataclass(frozen=True)
class Look:
    """An observation of an engine; `at` in seconds. `quiet`: since the previous one, none of its
    threads ran, wanted to run or waited for a disk. `stopped`: a process of it is in state T.
    """

    at: float
    beats: int
    phase: LoopPhase
    bound_s: float
    replica_beats: int
    probe: int
    quiet: bool
    stopped: bool = False


class EngineHealth(IntEnum):
    HEALTHY = 0
    SUSPECT = 1
    HUNG = 2


@dataclass(frozen=True)
class HangLimits:
    """Counted seconds until an engine is suspected, and until it is considered hung."""

    suspect_s: float
    hung_s: float


STOPPED = HangLimits(0.5, 3.0)
SILENT = HangLimits(3.0, 8.0)
# An engine's answers pass through a thread that needs a core besides its steps, so the limits are
# long. The engine must also have reported this many beats meanwhile, about three per step.
MUTE, MUTE_BEATS = HangLimits(8.0, 15.0), 60


def step_limits(bound_s: float) -> HangLimits:
    """Return the limits of a step. `bound_s` is twice the longest step of that size."""
    return HangLimits(bound_s + 2.0, 2.0 * bound_s + 4.0)


class Judge:
    """The judgment. `why` is a sentence, for the latest verdict except HEALTHY."""

    def __init__(self) -> None:
        self._last: Look | None = None
        self._verdict = EngineHealth.HEALTHY
        self.why = ""
        self._restart()

    def _restart(self) -> None:
        self._stopped_s = self._step_s = self._silent_s = self._mute_s = 0.0
        self._mute_beats = 0

    def look(self, look: Look) -> EngineHealth:
        last, self._last = self._last, look
        passed_s = look.at - last.at if last is not None else LATE_S
        if last is None or passed_s >= LATE_S:
            self._restart()
            return self._verdict
        counted_s = min(passed_s, PERIOD_S)
        quiet_s = counted_s if look.quiet else 0.0
        self._stopped_s = self._stopped_s + counted_s if look.stopped else 0.0
        went_on = look.beats != last.beats or look.phase != last.phase
        self._step_s = 0.0 if went_on else self._step_s + quiet_s
        if not look.probe or look.probe != last.probe or look.phase is not LoopPhase.IDLE:
            self._silent_s = 0.0
        elif look.replica_beats != last.replica_beats:
            self._silent_s += quiet_s
        self._listen(look, last, counted_s)
        self._verdict = self._judged(look)
        return self._verdict

    def _listen(self, look: Look, last: Look, counted_s: float) -> None:
        """Update whether a working engine answers."""
        if not look.probe or look.probe != last.probe:
            self._mute_s, self._mute_beats = 0.0, 0
        elif look.beats != last.beats and look.replica_beats != last.replica_beats:
            self._mute_s += counted_s
            self._mute_beats += look.beats - last.beats

    def _judged(self, look: Look) -> EngineHealth:
        if look.phase is LoopPhase.UNWATCHED:
            return EngineHealth.HEALTHY
        worst, step = EngineHealth.HEALTHY, step_limits(look.bound_s)
        step_s = self._step_s if look.phase is LoopPhase.STEP else 0.0
        mute_s = self._mute_s if self._mute_beats >= MUTE_BEATS else 0.0
        for counted_s, limits, why in (
            (self._stopped_s, STOPPED, "a process of it is stopped (state T)"),
            (step_s, step, f"its step took longer than the {look.bound_s:.2f} s that is its limit"),
            (self._silent_s, SILENT, "it is idle, but does not answer its replica"),
            (mute_s, MUTE, "it works, but does not answer its replica"),
        ):
            if counted_s < limits.suspect_s:
                continue
            verdict = EngineHealth.HUNG if counted_s >= limits.hung_s else EngineHealth.SUSPECT
            if verdict > worst:
                worst, self.why = verdict, f"{why}, for {counted_s:.1f} s that count"
        return worst
