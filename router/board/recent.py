"""Recent placements of all gateways: announced segments, and the popularity of prefixes and
replicas.

A placement announces the segments that its replica is about to compute. So a burst with one new
prefix follows the first request, from any gateway. An announcement is never a fact: it ends with
its request's failure or shortly after its first token is due, and `Candidate` distinguishes it from
the index's confirmed tokens. Times are arguments, in seconds of any one clock; memory is bounded,
and the oldest entries are forgotten first.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import msgspec

from router.index.index import Depths

# Keys are sent and stored by their first bytes, which suffice for the placements of a minute.
PREFIX_BYTES = 8
MAX_ANNOUNCED = 256
MAX_MATCHED = 8
# How long a placement stays announced after its predicted first token. By then the engine has
# reported to the index.
ANNOUNCED_AFTER_S = 2.0
MAX_ANNOUNCED_S = 60.0
LATELY_S = 30.0
# A key that was not counted for this long is forgotten: less than a hundredth of its count is left.
FADED_S = 5.0 * LATELY_S
MAX_PLACEMENTS = 4096
MAX_COUNTED = 8192
_NEVER = (math.inf, 0.0)

K = TypeVar("K")


class Placed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One placement, in the form that gateways exchange.

    `ticket` identifies the request's attempt. `matched`: the last segments that its candidates had
    when it was placed (`Recent.matched`). `announced`: the segments that its replica did not have.
    Both are the first PREFIX_BYTES of their keys. `sequences`: the number of the engine's
    sequences. `adapter`: the engine's name for the LoRA adapter; empty: none. `host_tokens`,
    `disk_tokens` and `peer_tokens`: those that its replica loads, as in `ReplicaQueue`.
    """

    gateway: str
    ticket: str
    slot: int
    incarnation: str
    prompt_tokens: int
    uncached_tokens: int
    predicted_ttft_s: float
    matched: tuple[bytes, ...] = ()
    announced: tuple[bytes, ...] = ()
    sequences: int = 1
    adapter: str = ""
    host_tokens: int = 0
    disk_tokens: int = 0
    peer_tokens: int = 0


# No slot has a segment.
NOWHERE: Mapping[int, int] = MappingProxyType({})


class TierDepths(NamedTuple):
    """Slot -> leading segments that are in this tier of the KV cache or closer to the device."""

    host: Depths = NOWHERE
    disk: Depths = NOWHERE


NO_TIERS = TierDepths()


def announcement(keys: Sequence[bytes], confirmed: int) -> tuple[bytes, ...]:
    """Return the announcement of a prompt's segment keys; the index has the first `confirmed` of
    them."""
    return tuple([key[:PREFIX_BYTES] for key in keys[confirmed : confirmed + MAX_ANNOUNCED]])


@dataclass(frozen=True)
class Recent:
    """Recent placements that concern one request. Counts are of about the last LATELY_S seconds,
    with decreasing weights.

    `depths`: slot -> leading segments cached or announced, for the slots with any. `matched`: the
    last segment at each depth that a candidate has, deepest last. `popularity`: the placements that
    share all of this prompt's confirmed segments; `traffic_share`: the same as a share of all
    placements, 0 to 1. `placements`: slot -> number of sequences placed there.
    """

    depths: Mapping[int, int] = field(default_factory=dict)
    matched: tuple[bytes, ...] = ()
    popularity: float = 0.0
    traffic_share: float = 0.0
    placements: Mapping[int, float] = field(default_factory=dict)


class RecentPlacements:
    """The placements of the last minute, of this gateway and of all reported ones."""

    def __init__(
        self, max_placements: int = MAX_PLACEMENTS, max_counted: int = MAX_COUNTED
    ) -> None:
        self._announcements = _Announcements(max_placements)
        self._popular: _Lately[bytes] = _Lately(max_counted)
        self._on_replica: _Lately[str] = _Lately(max_counted)
        self._traffic: _Lately[None] = _Lately(1)

    def add(self, placed: Placed, now: float) -> None:
        """Take a placement into account."""
        self._traffic.add(None, now)
        self._on_replica.add(placed.incarnation, now, placed.sequences)
        for segment in placed.matched:
            self._popular.add(segment, now)
        self._announcements.add(placed, now)

    def withdraw(self, ticket: str) -> None:
        """Withdraw the announcements of a request that failed, or never started."""
        self._announcements.withdraw(ticket)

    def about(
        self,
        keys: Sequence[bytes],
        depths: Mapping[int, int],
        incarnations: Mapping[int, str],
        now: float,
        tiers: TierDepths = NO_TIERS,
    ) -> Recent:
        """Return what concerns a prompt with these segment keys.

        `depths`: slot -> leading segments that the index confirms (empty: no signal); `tiers`:
        the same with those that a tier has after them; `incarnations`: slot -> incarnation of
        the candidates. Announcements and placements of other incarnations are ignored.
        """
        most = len(keys)
        confirmed = {
            slot: most if (depth := depths.get(slot, 0)) > most else depth for slot in incarnations
        }
        expected = self._announcements.extend(keys, confirmed, incarnations, now)
        held = set(confirmed.values())
        for found in tiers:
            held |= {min(most, found.get(slot, 0)) for slot in incarnations}
        ends = sorted({*held, *expected.values()} - {0})[-MAX_MATCHED:]
        popularity = share = 0.0
        if shared := max(held, default=0):
            popularity = self._popular.count(keys[shared - 1][:PREFIX_BYTES], now)
            share = popularity / max(popularity, self._traffic.count(None, now), 1.0)
        return Recent(
            depths={slot: depth for slot, depth in expected.items() if depth},
            matched=tuple(keys[end - 1][:PREFIX_BYTES] for end in ends),
            popularity=popularity,
            traffic_share=share,
            placements=self._on_replica.counts(incarnations, now),
        )


class _Announcements:
    """Announced segments by replica. Each placement once, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # ticket -> placement and its end, oldest first
        self._placed: OrderedDict[str, tuple[float, Placed]] = OrderedDict()
        # (end, ticket); the ticket may no longer exist
        self._ends: list[tuple[float, str]] = []
        # incarnation -> segment -> number of placements that announce it there
        self._segments: dict[str, Counter[bytes]] = {}

    def add(self, placed: Placed, now: float) -> None:
        self._expire(now)
        if not placed.announced or placed.ticket in self._placed:
            return
        end = now + min(MAX_ANNOUNCED_S, placed.predicted_ttft_s + ANNOUNCED_AFTER_S)
        self._placed[placed.ticket] = (end, placed)
        heapq.heappush(self._ends, (end, placed.ticket))
        self._segments.setdefault(placed.incarnation, Counter()).update(placed.announced)
        if len(self._placed) > self._limit:
            self.withdraw(next(iter(self._placed)))

    def withdraw(self, ticket: str) -> None:
        if (entry := self._placed.pop(ticket, None)) is None:
            return
        placed = entry[1]
        segments = self._segments[placed.incarnation]
        segments.subtract(placed.announced)
        for segment in placed.announced:
            if segments[segment] <= 0:
                del segments[segment]
        if not segments:
            del self._segments[placed.incarnation]

    def extend(
        self,
        keys: Sequence[bytes],
        depths: Mapping[int, int],
        incarnations: Mapping[int, str],
        now: float,
    ) -> dict[int, int]:
        """Return the depths, each extended while its replica announces the next segment."""
        self._expire(now)
        extended = dict(depths)
        if not self._segments:
            return extended
        most = len(keys)
        for slot, incarnation in incarnations.items():
            if segments := self._segments.get(incarnation):
                depth = depths[slot]
                while depth < most and keys[depth][:PREFIX_BYTES] in segments:
                    depth += 1
                extended[slot] = depth
        return extended

    def _expire(self, now: float) -> None:
        if len(self._ends) > 2 * self._limit:
            self._ends = [(end, ticket) for ticket, (end, _) in self._placed.items()]
            heapq.heapify(self._ends)
        while self._ends and self._ends[0][0] <= now:
            end, ticket = heapq.heappop(self._ends)
            if (entry := self._placed.get(ticket)) and entry[0] == end:
                self.withdraw(ticket)


class _Lately(Generic[K]):
    """Counts that fade by a factor of e every LATELY_S seconds, of at most `limit` things that were
    counted in the last FADED_S."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # key -> (time of its last count, its count then), oldest first
        self._counts: OrderedDict[K, tuple[float, float]] = OrderedDict()

    def add(self, thing: K, now: float, times: int = 1) -> None:
        self._counts[thing] = (now, times + self.count(thing, now))
        self._counts.move_to_end(thing)
        while len(self._counts) > self._limit or self._oldest_at <= now - FADED_S:
            self._counts.popitem(last=False)

    @property
    def _oldest_at(self) -> float:
        return next(iter(self._counts.values()))[0]

    def count(self, thing: K, now: float) -> float:
        return self.counts({0: thing}, now)[0]

    def counts(self, things: Mapping[int, K], now: float) -> dict[int, float]:
        """Return counts by the index of the things."""
        known, fade = self._counts, math.exp
        counts = {}
        for number, thing in things.items():
            at, count = known.get(thing, _NEVER)
            counts[number] = count * fade((at - now) / LATELY_S) if at < now else count
        return counts
