"""The state of the autoscaler between two decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from autoscaling.scaling.forecast import DemandSample, History
from autoscaling.scaling.holding import ReplicaHold

# A larger number is not a valid count or time.
MAX_COUNT, MAX_TIME_S = 1e15, 1e11
# Derived values, such as replicas times seconds or a sum of decreases, stay far below this.
MAX_DERIVED = 1e60
# A stored state never has more samples or levels than this.
MAX_STORED = 5000


@dataclass(frozen=True)
class State:
    """Times are of the caller's clock, in seconds.

    `raised_at` and `lowered_at` are those of the demand, `busy_at` when the pool last had work.
    `promoted_from`: the demand that gateways knew when they started to promote. `replica_s`: the
    seconds that replicas ran.
    """

    now: float = 0.0
    demand: int | None = None
    history: History = field(default_factory=History)
    levels: tuple[ReplicaHold, ...] = ()
    busy_at: float = 0.0
    raised_at: float = 0.0
    lowered_at: float = 0.0
    promoted_from: int | None = None
    replica_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data, which `from_dict` reads."""
        history = {**vars(self.history), "samples": [list(s) for s in self.history.samples]}
        return {**vars(self), "history": history, "levels": [list(level) for level in self.levels]}

    @classmethod
    def from_dict(cls, stored: Any) -> State:
        """Return the stored state; an empty one for data that `to_dict` did not write."""
        try:
            return _restored(stored)
        except (KeyError, TypeError, ValueError):
            return cls()


def known(value: object, least: float = 0.0, most: float = MAX_COUNT) -> float | None:
    """Return the number; None if it is not a number, not finite or out of bounds."""
    if not isinstance(value, int | float) or not least <= value <= most:
        return None
    return float(value)


def _restored(stored: Any) -> State:
    history, levels = stored["history"], stored["levels"]
    if max(len(history["samples"]), len(levels)) > MAX_STORED:
        raise ValueError("longer than what was stored")
    samples = tuple(_sample(*values) for values in history["samples"])
    if any(after.at <= before.at for before, after in pairwise(samples)):
        raise ValueError("samples are not in order")
    promoted_from = stored["promoted_from"]
    return State(
        now=_finite(stored["now"]),
        demand=int(_finite(stored["demand"])),
        history=History(
            samples,
            changed_at=_finite(history["changed_at"]),
            dispersion=max(1.0, _finite(history["dispersion"])),
            token_dispersion=max(1.0, _finite(history["token_dispersion"])),
        ),
        levels=tuple(ReplicaHold(_finite(at), _finite(hold_s)) for at, hold_s in levels),
        busy_at=_finite(stored["busy_at"]),
        raised_at=_finite(stored["raised_at"]),
        lowered_at=_finite(stored["lowered_at"]),
        promoted_from=None if promoted_from is None else int(_finite(promoted_from)),
        replica_s=_finite(stored["replica_s"]),
    )


def _sample(*values: Any) -> DemandSample:
    sample = DemandSample(*values)
    required, optional = sample[:6], sample[6:]
    for value in (*required, *(value for value in optional if value is not None)):
        _finite(value)
    return sample


def _finite(value: Any) -> float:
    number = known(value, -MAX_DERIVED, MAX_DERIVED)
    if number is None:
        raise ValueError(f"{value!r} is not a number")
    return number
