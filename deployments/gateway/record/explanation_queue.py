"""Limits the explanations that wait for Redis, and the bytes that may be written per second.

At a limit, explanations of failed requests have priority, and each kind has a guaranteed share.
Rejected requests cost clients nothing, so a flood of them must not displace the explanations of
failed and served requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["failed", "refused", "served"]

_KINDS: dict[str | None, Kind] = {
    **dict.fromkeys(("failed", "deadline", "cancelled"), "failed"),
    **dict.fromkeys(("rejected", "invalid"), "refused"),
}
# Half of the rate is guaranteed to kinds, in these shares. The other half is for any kind; this
# part of its burst is reserved for failed requests.
_SHARES: dict[Kind, float] = {"failed": 0.5, "refused": 0.25, "served": 0.25}
_RESERVED = 0.25


class Kept(NamedTuple):
    """An explanation on its way to Redis."""

    tenant: str
    request_id: str
    explanation: Mapping[str, Any]

    @property
    def kind(self) -> Kind:
        return _KINDS.get(self.explanation.get("outcome"), "served")


class ExplanationQueue:
    """A queue of up to `most` explanations: failed requests first, each kind in its order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed: deque[Kept] = deque()
        self._others: deque[Kept] = deque()
        self._any = asyncio.Event()

    def __len__(self) -> int:
        return len(self._failed) + len(self._others)

    def put(self, kept: Kept) -> Kept | None:
        """Add an explanation. Return the one that is dropped: this or an older one; None: none."""
        dropped = None
        if len(self) >= self._most:
            if kept.kind != "failed" or not self._others:
                return kept
            dropped = self._others.popleft()
        (self._failed if kept.kind == "failed" else self._others).append(kept)
        self._any.set()
        return dropped

    async def get(self) -> Kept:
        """Wait for the next explanation, and remove it."""
        while not len(self):
            self._any.clear()
            await self._any.wait()
        return self.get_now()

    def get_now(self) -> Kept:
        """Remove the next explanation. Raises IndexError if the queue is empty."""
        return (self._failed or self._others).popleft()


class WritingRate:
    """A token bucket of bytes for each kind, and one for all.

    Together they allow `bytes_per_s` on average, and bursts of `burst_s` seconds of it.
    """

    def __init__(
        self,
        bytes_per_s: float,
        burst_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._clock = clock
        self._filled_at = clock()
        self._own = {kind: share * self._half for kind, share in _SHARES.items()}
        self._common = self._half

    @property
    def _half(self) -> float:
        """Half of the burst, in bytes."""
        return self.bytes_per_s * self._burst_s / 2

    def may_write(self, kind: Kind) -> bool:
        """Return whether another explanation of that kind may be written now, of any size."""
        self._fill()
        reserved = 0.0 if kind == "failed" else _RESERVED * self._half
        return self._own[kind] > 0 or self._common > reserved

    def wrote(self, kind: Kind, size_bytes: int) -> None:
        if self._own[kind] > 0:
            self._own[kind] -= size_bytes
        else:
            self._common -= size_bytes

    def _fill(self) -> None:
        """Add the bytes of the elapsed time. Unused parts of a kind's share become common."""
        now, half = self._clock(), self._half
        new = (now - self._filled_at) * self.bytes_per_s
        self._filled_at = now
        for kind, share in _SHARES.items():
            own = self._own[kind] + new / 2 * share
            self._own[kind] = min(own, half * share)
            self._common += max(0.0, own - half * share)
        self._common = min(self._common + new / 2, half)
