"""The load of each replica from the view of one gateway: snapshots plus later placements.

Replicas publish `ReplicaLoad` in their leases, up to ten times a second, and
`router.board.load_reader` brings them here. A replica that stops publishing leaves the board when
its lease ends. A placement, of this gateway or of another, counts against its replica until a
snapshot lists it as arrived. The number of active replicas is one value (`router.board.active`):
the most senior ones are active, the others warm. A leaving or suspect replica is neither, unless no
other is left.

All of it is memory, with the clock as an argument. Nothing here raises into a request: without
snapshots `loads` becomes empty, and `last_known` lists all previous replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import add, sub
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from router.board.active import Active
from router.index.slots import LEASE_S

# A placement that no snapshot contains by then is waiting elsewhere, or has not arrived.
UNSEEN_S = 1.0
# How long an unreadable board still reports which replicas may be alive.
LAST_KNOWN_S = 300.0
EXPIRED_AT_ONCE = 16


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding of an engine at its present batch size. None: unknown so far."""

    on: bool
    tokens_per_pass: float | None
    speedup: float | None
    """Speed relative to decoding without speculation."""


class ReplicaQueue(msgspec.Struct, frozen=True):
    """The requests of a replica."""

    waiting: int
    """Sequences without a first token yet: a request's `n` for each of its prompts."""
    running: int
    """Running sequences that have their first token."""
    prefill_tokens: int
    """Prompt tokens of the waiting requests that are not computed yet."""
    host_tokens: int = 0
    """Prompt tokens of the waiting requests that are loaded from the host tier only."""
    disk_tokens: int = 0
    """Those that are read from the disk tier, and then loaded from the host."""
    peer_tokens: int = 0
    """Those that are pulled from other replicas, and then loaded from the host."""


class ReplicaCache(msgspec.Struct, frozen=True):
    """The KV cache of a replica's engine, and what the prefix index has of it."""

    use: float = 0.0
    """The share that live requests use, 0 to 1."""
    capacity_tokens: int = 0
    """0: unknown."""
    segment_tokens: int = 0
    """Tokens per entry in the prefix index; 0: the engine caches no prefixes."""
    synced: bool = True
    """Whether the whole cache is in the index."""


class EnginePace(msgspec.Struct, frozen=True):
    """How fast an engine computes, as measured. Rates are tokens per second, times are seconds."""

    prefill_rate: float
    """Prompt tokens computed per second, over whole steps."""
    inter_token_latency: float
    """Seconds from token to token of running sequences: the current time of an engine step."""
    prefill_learned: bool = True
    """`prefill_rate` is measured, not a prior."""
    step_s: float = 0.0
    """A step that decodes n sequences takes about `step_s + n * sequence_s`; both 0: unknown."""
    sequence_s: float = 0.0
    decode_s: float = 0.0
    """Seconds from a request's first token to its last, at the pace of the last seconds."""
    host_load_rate: float = 0.0
    """Tokens loaded from the host tier per second; 0: unknown, or without one."""
    disk_load_rate: float = 0.0
    """Tokens read from files into the host tier per second; 0: unknown, or without a disk tier."""
    peer_load_rate: float = 0.0
    """Tokens pulled from other replicas into the host tier per second; 0: unknown, or without
    peers."""


class ReplicaAdapters(msgspec.Struct, frozen=True):
    """LoRA adapters of an engine."""

    resident: tuple[str, ...] = ()
    """Those in its memory, by the engine's names for them."""
    slots: int = 0
    """Adapters whose requests it computes at once; 0: it loads none while it serves."""
    busy: int = 0
    """Adapters with requests that wait or run."""
    load_s: float = 0.0
    """Seconds that loading an adapter takes; 0: unknown."""


class ReplicaLoad(msgspec.Struct, frozen=True):
    """One replica's state, as it reports it."""

    replica_id: str
    slot: int
    """Its bit in the index's bitmaps."""
    incarnation: str
    """Id of the replica's current claim of its slot; data of earlier claims is void."""
    url: str
    """URL of its HTTP server."""
    node_ip: str
    queue: ReplicaQueue
    pace: EnginePace
    cache: ReplicaCache = ReplicaCache()
    adapters: ReplicaAdapters = ReplicaAdapters()
    renderer: str = ""
    """Digest of its rendering of prompts."""
    sequence: int = 0
    """Number of its report, including those with answers (`LoadReport`): the highest is the
    newest."""
    arrived: tuple[str, ...] = ()
    """Tickets of recently arrived requests."""
    started_at: float = 0.0
    """When it was ready, in epoch seconds."""
    startup_s: float = 0.0
    """Seconds from the start of its actor until then."""
    max_sequences: int = 0
    """Maximum of running sequences; 0: unknown."""
    max_model_len: int = 0
    """Tokens of the longest request, prompt and answer; 0: unknown."""
    output_tokens: int = 0
    """Tokens generated since its start."""
    asleep: bool = False
    """Its engine sleeps: a request wakes it first."""
    leaving: bool = False
    """Whether it or its node is being removed: it finishes its requests and gets no others."""
    closed: bool = False
    """Whether it stops listening: it gets no requests even if no other replica is left."""
    suspect: bool = False
    """Whether its engine may hang: it gets no requests until that is decided."""
    speculation: Speculation | None = None
    """None: it does not speculate."""
    engines_at_once: int = 0
    """Number of engines that its node computes at full speed, if they share cores; 0: it shares
    nothing."""
    tells_serve: bool = False
    """Whether it accepts requests without a reservation through Ray Serve, and reports them to
    Serve."""
    grammar_wait_s: float = 0.0
    """Waiting time of the oldest constraint behind compiles of other tenants; 0: none waits."""
    dtype: str = ""
    """Type in which its engine computes, such as bfloat16; empty: unknown."""
    peer: str = ""
    """Where its engine serves the blocks of its host tier to other engines, as host:port; empty: it
    neither serves nor pulls any."""

    @property
    def is_leaving(self) -> bool:
        return self.leaving or self.closed

    @property
    def is_avoided(self) -> bool:
        return self.is_leaving or self.suspect

    @property
    def seniority(self) -> tuple[bool, float, str]:
        """Return the sort key of replicas: the first ones are active, the next ones are promoted in
        this order.

        The longest ready come first, because Ray Serve stops the newest; sleeping ones come last.
        """
        return self.asleep, self.started_at, self.replica_id

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True)
class LoadReport:
    """A replica's report of its queue with each answer, newer than its last snapshot.

    `sequence` is shared with its snapshots.
    """

    sequence: int
    queue: ReplicaQueue

    def to_header(self) -> str:
        queue = self.queue
        values = (self.sequence, queue.waiting, queue.running, queue.prefill_tokens)
        tiers = (queue.host_tokens, queue.disk_tokens, queue.peer_tokens)
        return " ".join(map(str, (*values, *tiers)))

    @classmethod
    def from_header(cls, header: str) -> LoadReport:
        """Parse a header. Raises ValueError for another form."""
        sequence, waiting, running, *tokens = (int(value) for value in header.split(" "))
        prefill_tokens, host_tokens, disk_tokens, peer_tokens = tokens
        queue = ReplicaQueue(
            waiting, running, prefill_tokens, host_tokens, disk_tokens, peer_tokens
        )
        return cls(sequence, queue)


# The sequences of placements, and their tokens: those to compute, to load from the host tier, to
# read from the disk tier, and to pull from replicas.
_Counts = tuple[int, int, int, int, int]
_NONE: _Counts = (0, 0, 0, 0, 0)


class _Unseen(NamedTuple):
    """A placement that its replica has not reported yet; `placed_at` by the board's clock."""

    placed_at: float
    slot: int
    counts: _Counts
    adapter: str


class LoadBoard:
    """One pool's loads, only in memory; `clock` returns seconds.

    `active_seen`: the last known number of active replicas; None: all are. `prefill_learned`: a
    replica has measured its prefill rate, and it is not a prior.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._read_at = float("-inf")
        self._last_known_at = float("-inf")
        self._last_known: dict[str, ReplicaLoad] = {}
        self._empty_since: float | None = None
        # as reported; and the same with the placements that the reports do not contain yet
        self._told: dict[str, ReplicaLoad] = {}
        self._loads: dict[str, ReplicaLoad] = {}
        self.active_seen: Active | None = None
        self.prefill_learned = False
        self._by_seniority: list[str] = []
        self._replica_in: dict[int, str] = {}
        # by ticket, oldest first; and the sums of their counts by slot
        self._unseen: dict[str, _Unseen] = {}
        self._unseen_in: dict[int, _Counts] = {}

    def update(self, snapshots: Iterable[ReplicaLoad], current: Active | None = None) -> None:
        # A pool's engines are alike, so what one has learned holds for all. Random differences in
        # their measurements must not affect the balance.
        loads = list(snapshots)
        is_open = any(not load.closed for load in loads)
        learned = [load.pace.prefill_rate for load in loads if load.pace.prefill_learned]
        if loads:
            self.prefill_learned = bool(learned)
        rates = learned or [load.pace.prefill_rate for load in loads]
        rate = sum(rates) / max(1, len(rates))
        answers = [load.pace.decode_s for load in loads if load.pace.decode_s > 0.0]
        decode_s = sum(answers) / max(1, len(answers))
        self.active_seen = current
        alike = [
            replace(load, pace=replace(load.pace, prefill_rate=rate, decode_s=decode_s))
            for load in loads
        ]
        self._told = {load.replica_id: self._newest(load) for load in alike}
        self._replica_in = {load.slot: load.replica_id for load in loads}
        was_read, self._read_at = self.is_read, self._clock()
        if is_open:
            self._empty_since = None
        elif self._empty_since is None or not was_read:
            # the board was not readable: replicas could not renew their leases either
            self._empty_since = self._read_at
        for load in loads:
            for ticket in load.arrived:
                self.unplaced(ticket)
        self._loads = {}
        for slot in self._replica_in:
            self._sum_up(slot)
        by_seniority = sorted(_serving(self._told.values()), key=lambda load: load.seniority)
        self._by_seniority = [load.replica_id for load in by_seniority]
        if loads:
            self._last_known = {name: of for name, of in self._told.items() if not of.closed}
            self._last_known_at = self._read_at

    def reported(self, replica_id: str, report: LoadReport) -> None:
        """Apply a replica's report with an answer, for the next placement."""
        known = self._told.get(replica_id)
        if known is not None and known.sequence < report.sequence:
            self._told[replica_id] = _reported(known, report)
            self._sum_up(known.slot)

    def placed(
        self,
        ticket: str,
        slot: int,
        uncached_tokens: int,
        sequences: int = 1,
        adapter: str = "",
        host_tokens: int = 0,
        disk_tokens: int = 0,
        peer_tokens: int = 0,
    ) -> None:
        """Count a request against a replica until the replica reports it, or `unplaced`.

        `host_tokens`, `disk_tokens` and `peer_tokens` are those that it loads, as in
        `ReplicaQueue`.
        """
        self.unplaced(ticket)
        counts = (sequences, uncached_tokens, host_tokens, disk_tokens, peer_tokens)
        self._unseen[ticket] = _Unseen(self._clock(), slot, counts, adapter)
        self._unseen_in[slot] = _summed(add, self._unseen_in.get(slot, _NONE), counts)
        self._sum_up(slot)

    def unplaced(self, ticket: str) -> None:
        if ticket not in self._unseen:
            return
        gone = self._unseen.pop(ticket)
        left = _summed(sub, self._unseen_in.pop(gone.slot), gone.counts)
        if left[0]:
            self._unseen_in[gone.slot] = left
        self._sum_up(gone.slot)

    def loads(self) -> Mapping[str, ReplicaLoad]:
        """Return the live active replicas, by replica id; empty while Redis does not answer."""
        return self._live(slice(None, self._active_count))

    def load_of(self, replica_id: str) -> ReplicaLoad | None:
        """Return the load of a live replica, active or not; None: unknown."""
        return self._loads.get(replica_id) if self.is_read else None

    def warm(self) -> Mapping[str, ReplicaLoad]:
        """Return the other live replicas, the next to be promoted first."""
        return self._live(slice(self._active_count, None))

    def leaving(self) -> Mapping[str, ReplicaLoad]:
        """Return the live replicas that are leaving and get no traffic."""
        return {name: load for name, load in self._avoided().items() if load.is_leaving}

    def suspects(self) -> Mapping[str, ReplicaLoad]:
        """Return the other live replicas without traffic: their engines may hang."""
        return {name: load for name, load in self._avoided().items() if not load.is_leaving}

    def _avoided(self) -> Mapping[str, ReplicaLoad]:
        if not self.is_read:
            return {}
        serving = set(self._by_seniority)
        return {name: load for name, load in self._loads.items() if name not in serving}

    def address_of(self, replica_id: str) -> str | None:
        """Return its last known address; None: unknown."""
        load = self._told.get(replica_id) or self._known().get(replica_id)
        return load.url if load else None

    def is_live(self, replica_id: str) -> bool:
        """Return whether it has a current lease, whatever its role."""
        return self.is_read and replica_id in self._told

    def direct_url(self, replica_id: str) -> str | None:
        """Return the address of a live replica for requests without a reservation; None:
        unknown."""
        load = self._told.get(replica_id) if self.is_read else None
        return load.url if load and load.tells_serve else None

    def is_leaving(self, replica_id: str) -> bool:
        """Return whether it has reported to be leaving, in any reading."""
        load = self._told.get(replica_id)
        return load is not None and load.is_leaving

    def is_avoided(self, replica_id: str) -> bool:
        """Return whether it was leaving or a suspect in any reading: no answer should start or stay
        there if another replica accepts it."""
        load = self._told.get(replica_id)
        return load is not None and load.is_avoided

    @property
    def is_read(self) -> bool:
        """Whether Redis answered lately: if the board is empty, no replica is live."""
        return self._clock() - self._read_at <= LEASE_S

    @property
    def empty_for_s(self) -> float:
        """Return for how long each reading has found no replica; 0 if there is one, and while Redis
        does not answer."""
        if self._empty_since is None or not self.is_read:
            return 0.0
        return self._clock() - self._empty_since

    @property
    def _active_count(self) -> int:
        return max(1, self.active_seen.count) if self.active_seen else len(self._by_seniority)

    def _live(self, part: slice) -> Mapping[str, ReplicaLoad]:
        if not self.is_read:
            return {}
        now = self._clock()
        for ticket, unseen in list(islice(self._unseen.items(), EXPIRED_AT_ONCE)):
            if now - unseen.placed_at <= UNSEEN_S:
                break
            self.unplaced(ticket)
        return {replica_id: self._loads[replica_id] for replica_id in self._by_seniority[part]}

    def _newest(self, load: ReplicaLoad) -> ReplicaLoad:
        known = self._told.get(load.replica_id)
        if known is None or known.sequence <= load.sequence:
            return load
        return _reported(load, known) if known.incarnation == load.incarnation else load

    def _sum_up(self, slot: int) -> None:
        if (replica_id := self._replica_in.get(slot)) is None:
            return
        load = self._told[replica_id]
        count, tokens, host_tokens, disk_tokens, peer_tokens = self._unseen_in.get(slot, _NONE)
        if count:
            queue = replace(
                load.queue,
                waiting=load.queue.waiting + count,
                prefill_tokens=load.queue.prefill_tokens + tokens,
                host_tokens=load.queue.host_tokens + host_tokens,
                disk_tokens=load.queue.disk_tokens + disk_tokens,
                peer_tokens=load.queue.peer_tokens + peer_tokens,
            )
            load = replace(load, queue=queue)
            if load.adapters.slots:
                load = self._with_adapters(load)
        self._loads[replica_id] = load

    def _with_adapters(self, load: ReplicaLoad) -> ReplicaLoad:
        """Return the load with the adapters that it is about to load."""
        there = (unseen for unseen in self._unseen.values() if unseen.slot == load.slot)
        coming = {unseen.adapter for unseen in there if unseen.adapter}
        known = load.adapters
        new = coming.difference(known.resident)
        resident, busy = (*known.resident, *new), known.busy + len(new)
        return replace(load, adapters=replace(known, resident=resident, busy=busy))

    @property
    def segment_tokens(self) -> int:
        """The segment size of the pool's replicas; 0: none of them caches prefixes."""
        loads = self.loads() or self.last_known()
        sizes = Counter(load.cache.segment_tokens for load in loads.values())
        return max(sizes, key=lambda size: (sizes[size], size), default=0)

    def last_known(self) -> Mapping[str, ReplicaLoad]:
        """Return the replicas that served on the last non-empty board, for times when `loads` is
        empty."""
        return {load.replica_id: load for load in _serving(self._known().values())}

    def _known(self) -> Mapping[str, ReplicaLoad]:
        known = self._clock() - self._last_known_at <= LAST_KNOWN_S
        return self._last_known if known else {}


def _serving(loads: Collection[ReplicaLoad]) -> list[ReplicaLoad]:
    staying = [load for load in loads if not load.is_avoided]
    # a replica that is leaving, or may hang, is better than none
    return staying or [load for load in loads if not load.closed]


def _summed(of: Callable[[int, int], int], counts: _Counts, more: _Counts) -> _Counts:
    sequences, tokens, host_tokens, disk_tokens, peer_tokens = map(of, counts, more)
    return sequences, tokens, host_tokens, disk_tokens, peer_tokens


def _reported(load: ReplicaLoad, newer: ReplicaLoad | LoadReport) -> ReplicaLoad:
    return replace(load, sequence=newer.sequence, queue=newer.queue)
