"""The tiers of a simulated engine's KV cache: copies of its blocks in host memory and on disk.

Each computed block is copied to the host tier and written to the disk tier at once, which takes no
time. A block that is read from disk is in the host tier again. One that is pulled from another
replica enters the host tier when it has arrived. Both tiers evict their least recently used blocks.
Loads take turns on the path from the host, reads on the path from the disk, and pulls on the path
from other replicas. So no load becomes faster if several start at the same time.

Omitted: the time to store blocks, and the time that a replica spends on the pulls of others. Also
omitted: `arc` eviction, the expiry of files, and files that other replicas wrote or that outlive an
engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoscaling.learned.load_rate import LoadRate
from router.choice.cost import UNKNOWN_DISK_LOAD, UNKNOWN_HOST_LOAD, UNKNOWN_PEER_LOAD
from router.choice.policies import Candidate
from router.index.cached_blocks import DISK_MEDIUM, HOST_MEDIUM
from router.index.kv_events import BlockRemoved, BlockStored, KvEvent


@dataclass(frozen=True)
class TierSettings:
    """The tiers of each replica. Capacities are tokens, and rates are tokens per second.

    What is read from disk, or pulled from another replica if there are `peers`, is then loaded from
    the host. Rates of None are UNKNOWN_HOST_LOAD, UNKNOWN_DISK_LOAD and UNKNOWN_PEER_LOAD times the
    engine's prefill rate, which gateways assume too.
    """

    host_tokens: int
    disk_tokens: int = 0
    host_load_rate: float | None = None
    disk_load_rate: float | None = None
    peers: bool = False
    peer_load_rate: float | None = None

    def token_s(self, prefill_rate: float) -> tuple[float, float, float]:
        """Return the seconds to load a token from the host, to read one from disk, and to pull
        one."""
        return (
            1.0 / (self.host_load_rate or UNKNOWN_HOST_LOAD * prefill_rate),
            1.0 / (self.disk_load_rate or UNKNOWN_DISK_LOAD * prefill_rate),
            1.0 / (self.peer_load_rate or UNKNOWN_PEER_LOAD * prefill_rate),
        )


HasBlock = Callable[[int], bool]


@dataclass(frozen=True)
class RequestedLoads:
    """What a gateway sends with a request: the tokens that it expects from each tier and from
    another replica, and the tiers that the engine must not use.

    `source`: whether the replica to pull from has a block in its host tier; None: none is pulled.
    A request that pulls does not read from disk.
    """

    host_tokens: int = 0
    disk_tokens: int = 0
    refuses_host: bool = False
    refuses_disk: bool = False
    peer_tokens: int = 0
    source: HasBlock | None = None

    @classmethod
    def of(cls, chosen: Candidate, source: HasBlock | None = None) -> RequestedLoads:
        host_tokens, disk_tokens, peer_tokens = chosen.loaded_tokens[:3]
        refused = (
            chosen.refuses_host,
            (chosen.refuses_disk or chosen.pulls or chosen.prefills_elsewhere),
        )
        return cls(host_tokens, disk_tokens, *refused, peer_tokens, source)


# An engine without a gateway that decides loads everything that its tiers have.
ALL_LOADS = RequestedLoads()


@dataclass(frozen=True)
class LoadPaths:
    """When the paths from the host, from the disk, and from other replicas have ended all loads so
    far."""

    host_free_at: float = 0.0
    disk_free_at: float = 0.0
    peer_free_at: float = 0.0

    def after(
        self, now: float, host_s: float, read_s: float, pull_s: float = 0.0
    ) -> tuple[LoadPaths, float]:
        """Return the paths with one more load, and when that load ends.

        It is read first, for `read_s`, or pulled, for `pull_s`. Then it takes `host_s` on the path
        from the host, which serves other loads until then.
        """
        read_until = max(now, self.disk_free_at) + read_s if read_s else now
        pulled_until = max(now, self.peer_free_at) + pull_s if pull_s else now
        host_free_at = max(now, self.host_free_at)
        paths = LoadPaths(
            host_free_at + host_s,
            max(read_until, self.disk_free_at),
            max(pulled_until, self.peer_free_at),
        )
        return paths, max(host_free_at, read_until, pulled_until) + host_s


@dataclass(frozen=True)
class _Load:
    """Blocks on their way: `read` of them come from the disk, or `pulled` from another replica."""

    ends_at: float
    blocks: Sequence[int]
    read: int
    pulled: Sequence[int]


class SimulatedTiers:
    """The tiers of one engine, whose `clock` returns seconds."""

    def __init__(
        self,
        settings: TierSettings,
        prefill_rate: float,
        block_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._block_tokens = block_tokens
        self._clock = clock
        self._host_token_s, self._disk_token_s, self._peer_token_s = settings.token_s(prefill_rate)
        self._host = _Tier(settings.host_tokens // block_tokens, block_tokens, HOST_MEDIUM)
        self._disk = _Tier(settings.disk_tokens // block_tokens, block_tokens, DISK_MEDIUM)
        self._host_load, self._disk_load = LoadRate(clock), LoadRate(clock)
        self._peer_load = LoadRate(clock)
        self._paths = LoadPaths()
        self._loads: list[_Load] = []
        # when each block that is being loaded arrives
        self._arriving: dict[int, float] = {}
        # those of them that are not in the host tier yet
        self._pulling: set[int] = set()

    @property
    def rates(self) -> tuple[float, float, float]:
        """Return the rates of loads, of reads and of pulls as measured, in tokens per second; 0:
        unknown."""
        return self._host_load.rate, self._disk_load.rate, self._peer_load.rate

    def serves(self, block: int) -> bool:
        """Return whether other replicas can pull a block from here."""
        return self._host.has(block)

    def depths(self, blocks: Sequence[int], cached: int) -> tuple[int, int]:
        """Return how many leading blocks are in the host tier or closer to the device, and how many
        in the disk tier or closer. The first `cached` are in the device's memory."""
        host = cached
        while host < len(blocks) and self._host.has(blocks[host]):
            host += 1
        disk = host
        if self._disk.blocks:
            while disk < len(blocks) and any(t.has(blocks[disk]) for t in (self._host, self._disk)):
                disk += 1
        return host, disk

    def found(self, blocks: Sequence[int], cached: int, loads: RequestedLoads) -> Sequence[int]:
        """Return the blocks that a request loads after its `cached` ones."""
        if loads.refuses_host:
            return ()
        host, disk = self.depths(blocks, cached)
        end = host if loads.refuses_disk else disk
        while end < len(blocks) and self._can_pull(blocks[end], loads.source):
            end += 1
        return blocks[cached:end]

    def begin(
        self, blocks: Sequence[int], loads: RequestedLoads = ALL_LOADS
    ) -> tuple[float, list[KvEvent]]:
        """Begin to load blocks that were found. Return when all have arrived, and the events.

        Blocks that another request loads are not loaded again.
        """
        own = [block for block in blocks if block not in self._arriving]
        far = [block for block in own if not self._host.has(block)]
        read, pulled = (far, []) if loads.source is None else ([], far)
        self._paths, ends_at = self._paths.after(
            self._clock(),
            len(own) * self._block_tokens * self._host_token_s,
            len(read) * self._block_tokens * self._disk_token_s,
            len(pulled) * self._block_tokens * self._peer_token_s,
        )
        others = [self._arriving[block] for block in blocks if block in self._arriving]
        if own:
            self._loads.append(_Load(ends_at, own, len(read), pulled))
            self._arriving.update(dict.fromkeys(own, ends_at))
            self._pulling.update(pulled)
        return max([*others, ends_at] if own else others), self._host.add(read)

    def end(self) -> list[KvEvent]:
        """Learn from the loads that have ended by now. Return the events."""
        now = self._clock()
        events: list[KvEvent] = []
        for load in [load for load in self._loads if load.ends_at <= now]:
            _learn(self._host_load, len(load.blocks) * self._block_tokens, self._host_token_s)
            _learn(self._disk_load, load.read * self._block_tokens, self._disk_token_s)
            _learn(self._peer_load, len(load.pulled) * self._block_tokens, self._peer_token_s)
            for block in load.blocks:
                self._arriving.pop(block, None)
            self._pulling.difference_update(load.pulled)
            events += self._host.add(load.pulled)
        self._loads = [load for load in self._loads if load.ends_at > now]
        return events

    def store(self, blocks: Sequence[int]) -> list[KvEvent]:
        """Copy computed blocks to the tiers. Return the events."""
        new = [block for block in blocks if not self._host.has(block)]
        return self._host.add(new) + self._disk.add(new)

    def touch(self, blocks: Sequence[int]) -> None:
        """Mark a request's blocks as used, its first last, because the start of a prompt is worth
        most."""
        for block in reversed(blocks):
            self._host.touch(block)
            self._disk.touch(block)

    def _can_pull(self, block: int, source: HasBlock | None) -> bool:
        """Return whether a block after those in the tiers comes from another replica, or is already
        on its way. Later blocks may be in the host tier again."""
        if block in self._pulling or self._host.has(block):
            return True
        return source is not None and source(block)


class _Tier:
    """The blocks in one tier, the least recently used first."""

    def __init__(self, capacity: int, block_tokens: int, medium: str) -> None:
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self._capacity = capacity
        self._block_tokens = block_tokens
        self._medium = medium

    def has(self, block: int) -> bool:
        return block in self.blocks

    def touch(self, block: int) -> None:
        if block in self.blocks:
            self.blocks.move_to_end(block)

    def add(self, blocks: Sequence[int]) -> list[KvEvent]:
        """Add blocks, and evict others to make room for them. Return the events."""
        if not self._capacity:
            return []
        new = [block for block in blocks if block not in self.blocks]
        self.blocks.update(dict.fromkeys(new))
        excess = max(0, len(self.blocks) - self._capacity)
        evicted = [self.blocks.popitem(last=False)[0] for _ in range(excess)]
        events: list[KvEvent] = []
        if new:
            events.append(BlockStored(list(new), None, [], self._block_tokens, self._medium))
        if evicted:
            events.append(BlockRemoved(list(evicted), self._medium))
        return events


def _learn(rate: LoadRate, tokens: int, token_s: float) -> None:
    if tokens:
        rate.spent({"": tokens * token_s})
        rate.loaded(tokens)
