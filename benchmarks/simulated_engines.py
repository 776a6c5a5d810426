"""vLLM engines without the computing: queue, prefix cache and KV events are as theirs.

An engine steps as vLLM's scheduler does: running requests decode a token each, waiting prompts
are prefilled in their order within the step's token budget, whole blocks are cached, and of those
in no request's use the longest unused make room. It is a function of the times it is given.
A request that never fits raises ValueError.

Left out: preemption (a request is let in when its answer has room too), and a second copy of a
block that is cached.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from router.kv_events import BlockRemoved, BlockStored, KvEvent


@dataclass(frozen=True)
class Hardware:
    """What an engine can do: tokens, tokens per second, seconds."""

    prefill_rate: float = 18_000.0
    step_s: float = 0.010
    sequence_s: float = 0.0002
    step_tokens: int = 2048
    sequences: int = 64
    block_tokens: int = 16
    blocks: int = 8192


class Mean:
    """Exponentially weighted, each sample by its weight; 0 before the first."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._amount = 0.0
        self._weight = 0.0

    def add(self, amount: float, weight: float) -> None:
        keep = max(0.0, 1.0 - weight / self._memory)
        self._amount = self._amount * keep + amount
        self._weight = self._weight * keep + weight

    @property
    def value(self) -> float:
        return self._amount / self._weight if self._weight else 0.0


class BlockCache:
    """Blocks by hash: in use, or free and held until their room is needed."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._users: dict[int, int] = {}
        # least recently freed first
        self._free: OrderedDict[int, None] = OrderedDict()
        # given to requests, nothing cached in them yet
        self._blank = 0

    @property
    def in_use(self) -> int:
        return len(self._users) + self._blank

    def holds(self, block: int) -> bool:
        return block in self._users or block in self._free

    def use(self, cached: Sequence[int], blank: int) -> list[int] | None:
        """Take these held blocks and so many blank ones: what is evicted, None without room."""
        reused = sum(block in self._free for block in cached)
        if self.in_use + reused + blank > self._capacity:
            return None
        for block in cached:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        self._blank += blank
        excess = self.in_use + len(self._free) - self._capacity
        return [self._free.popitem(last=False)[0] for _ in range(excess)]

    def fill(self, block: int) -> bool:
        """A blank one in use now holds this; False if another does, and it stays blank."""
        if self.holds(block):
            return False
        self._blank -= 1
        self._users[block] = 1
        return True

    def release(self, blocks: Sequence[int], blank: int) -> None:
        """Free a request's blocks, its last first: the start of a prompt is worth most."""
        self._blank -= blank
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._free[block] = None


@dataclass(eq=False)
class Job:
    """One request in an engine. `tokens`: its prompt, then the answer it is going to get."""

    ticket: str
    tokens: list[int]
    prompt_tokens: int
    expected_cached: int = 0
    cached_tokens: int = 0
    # tokens whose KV is computed or found
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    blank: int = 0
    taken: list[int] = field(default_factory=list)
    stored: int = 0
    admitted_at: float | None = None

    @property
    def queued_tokens(self) -> int:
        """What a replica reports of it while it waits."""
        return max(1, self.prompt_tokens - self.expected_cached)


@dataclass(frozen=True)
class Outcome:
    """What came of the steps that ended: each job with when it did, in order."""

    events: list[KvEvent] = field(default_factory=list)
    first_tokens: list[tuple[Job, float]] = field(default_factory=list)
    finished: list[tuple[Job, float]] = field(default_factory=list)


class SimulatedEngine:
    """Call `advance` up to a time before `submit` at it. Times are seconds of any one clock."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._cache = BlockCache(hardware.blocks)
        self._waiting: deque[Job] = deque()
        self._prefilled: list[Job] = []
        self._running: list[Job] = []
        self._events: list[KvEvent] = []
        self._step_began = 0.0
        self._inter_token = Mean(memory=20.0)
        self._prefill_rate = Mean(memory=20.0)
        # When the step under way ends; None while there is nothing to do.
        self.next_at: float | None = None

    def submit(self, job: Job, now: float) -> None:
        """Raises ValueError for a request that never fits."""
        size = self._hardware.block_tokens
        if -(-len(job.tokens) // size) > self._hardware.blocks or job.prompt_tokens < 1:
            raise ValueError(f"{len(job.tokens)} tokens do not fit")
        job.blocks = block_hashes(job.tokens, size)
        self._waiting.append(job)
        if self.next_at is None:
            self._begin_step(now)

    def advance(self, now: float) -> Outcome:
        outcome = Outcome()
        while self.next_at is not None and self.next_at <= now:
            self._end_step(self.next_at, outcome)
        return outcome

    def cached_tokens(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first on, it holds in whole blocks."""
        return self._found(block_hashes(tokens, self._hardware.block_tokens))

    def load(self) -> dict[str, Any]:
        """Those fields of `ReplicaLoad` that an engine tells."""
        waiting = [*self._prefilled, *self._waiting]
        busy = bool(waiting or self._running)
        return {
            "waiting": len(waiting),
            "running": len(self._running),
            "queued_prefill_tokens": sum(job.queued_tokens for job in waiting),
            "kv_use": self._cache.in_use / self._hardware.blocks if busy else 0.0,
            "kv_capacity_tokens": self._hardware.blocks * self._hardware.block_tokens,
            "prefill_rate": self._prefill_rate.value or self._hardware.prefill_rate,
            "inter_token_latency": self._inter_token.value if self._running else 0.0,
        }

    def _begin_step(self, now: float) -> None:
        self._step_began = now
        room = self._hardware.step_tokens - len(self._running)
        computed = 0
        while self._waiting and computed < room:
            job = self._waiting[0]
            if job.admitted_at is None and not self._admit(job, now):
                break
            tokens = min(room - computed, job.prompt_tokens - job.computed)
            computed += tokens
            job.computed += tokens
            self._store(job)
            if job.computed < job.prompt_tokens:
                break
            self._prefilled.append(self._waiting.popleft())
        if not self._prefilled and not self._running and not computed:
            self.next_at = None
            return
        decode_s = self._hardware.sequence_s * len(self._running)
        prefill_s = computed / self._hardware.prefill_rate
        self.next_at = now + self._hardware.step_s + decode_s + prefill_s

    def _admit(self, job: Job, now: float) -> bool:
        if len(self._running) + len(self._prefilled) >= self._hardware.sequences:
            return False
        size = self._hardware.block_tokens
        # The last prompt token is always computed: the engine goes on from it.
        found = self._found(job.blocks[: (job.prompt_tokens - 1) // size]) // size
        blank = -(-len(job.tokens) // size) - found
        evicted = self._cache.use(job.blocks[:found], blank)
        if evicted is None:
            return False
        if evicted:
            self._events.append(BlockRemoved(list(evicted), "GPU"))
        job.taken, job.blank, job.stored = job.blocks[:found], blank, found
        job.computed = job.cached_tokens = found * size
        job.admitted_at = now
        return True

    def _found(self, blocks: Sequence[int]) -> int:
        held = takewhile(self._cache.holds, blocks)
        return sum(1 for _ in held) * self._hardware.block_tokens

    def _store(self, job: Job) -> None:
        """Cache the blocks that have become whole; the events tell each run of them."""
        size = self._hardware.block_tokens
        run: list[int] = []
        while job.stored < job.computed // size:
            block = job.blocks[job.stored]
            if self._cache.fill(block):
                run.append(block)
            else:
                self._tell_stored(job, run)
                run = []
            job.stored += 1
        self._tell_stored(job, run)

    def _tell_stored(self, job: Job, run: list[int]) -> None:
        if not run:
            return
        job.taken += run
        job.blank -= len(run)
        size, first = self._hardware.block_tokens, job.stored - len(run)
        parent = job.blocks[first - 1] if first else None
        tokens = job.tokens[first * size : job.stored * size]
        self._events.append(BlockStored(list(run), parent, tokens, size, "GPU"))

    def _end_step(self, now: float, outcome: Outcome) -> None:
        for _ in self._running:
            self._inter_token.add(now - self._step_began, 1.0)
        for job in self._running:
            job.computed += 1
            self._store(job)
        for job in self._prefilled:
            assert job.admitted_at is not None
            if (own := job.prompt_tokens - job.cached_tokens) >= 64:
                self._prefill_rate.add(float(own), now - job.admitted_at)
            outcome.first_tokens.append((job, now))
        self._running += self._prefilled
        self._prefilled = []
        for job in self._running:
            # The last token of an answer is never computed on.
            if job.computed >= len(job.tokens) - 1:
                self._cache.release(job.taken, job.blank)
                outcome.finished.append((job, now))
        self._running = [job for job in self._running if job.computed < len(job.tokens) - 1]
        outcome.events.extend(self._events)
        self._events = []
        self._begin_step(now)


def block_hashes(tokens: Sequence[int], block_tokens: int) -> list[int]:
    """One for each whole block, chained: equal if and (all but certainly) only if all before is."""
    packed = array("I", tokens).tobytes()
    length = 4 * block_tokens
    chained, hashes = 0, []
    for start in range(0, len(packed) - length + 1, length):
        chained = hash((chained, packed[start : start + length]))
        hashes.append(chained)
    return hashes
