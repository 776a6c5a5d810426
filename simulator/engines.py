"""Simulated vLLM engines: their queue, prefix cache and KV events without the computation.

An engine steps like vLLM's scheduler: running requests decode a token each, and waiting prompts are
prefilled in order within the step's token budget. Whole blocks are cached, and the least recently
used free blocks are evicted. An engine is a function of the times it is given. A request that never
fits raises ValueError.

With tiers (`simulator.cache.kv_tiers`), a load begins at the first step after its request arrives.
If the cache has no room then, it begins at the request's turn. Meanwhile the engine computes other
prompts, including later ones.

Steps in which only the lengths of answers change are taken together, so that hours of traffic take
seconds; the times of events stay the same. Omitted: preemption (a request is admitted when its
answer has room too), and a second copy of a cached block.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from autoscaling.learned.decode_time import DecodeTime
from autoscaling.learned.ewma import Ewma
from autoscaling.learned.prefill_rate import PrefillRate, queued_tokens
from autoscaling.learned.step_time import StepTime
from router.board.load import EnginePace, ReplicaCache, ReplicaQueue
from router.index.kv_events import BlockRemoved, BlockStored, KvEvent
from simulator.cache.block_cache import BlockCache
from simulator.cache.kv_tiers import ALL_LOADS, RequestedLoads, SimulatedTiers, TierSettings


@dataclass(frozen=True)
class Hardware:
    """The limits and speed of an engine: tokens, tokens per second, seconds."""

    prefill_rate: float = 18_000.0
    step_s: float = 0.010
    sequence_s: float = 0.0002
    step_tokens: int = 2048
    sequences: int = 64
    block_tokens: int = 16
    blocks: int = 8192


@dataclass(eq=False)
class Job:
    """One request in an engine. `tokens`: its prompt, then its future answer."""

    ticket: str
    tokens: list[int]
    prompt_tokens: int
    expected_cached: int = 0
    # prompt and answer
    length: int = 0
    cached_tokens: int = 0
    # tokens whose KV is computed or cached
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    blank: int = 0
    taken: list[int] = field(default_factory=list)
    stored: int = 0
    came_at: float = 0.0
    loads: RequestedLoads = ALL_LOADS
    # When its blocks from tiers have arrived; infinity: it has no blocks yet.
    loaded_at: float = math.inf
    admitted_at: float | None = None
    first_at: float | None = None

    def __post_init__(self) -> None:
        self.length = self.length or len(self.tokens)

    @classmethod
    def hashed(
        cls,
        ticket: str,
        prompt_tokens: int,
        answer_tokens: int,
        blocks: Sequence[int] = (),
        expected_cached: int = 0,
        loads: RequestedLoads = ALL_LOADS,
    ) -> Job:
        """Create a request from lengths and hashes of the leading whole blocks of its prompt, or of
        prompt and answer.

        Blocks without a hash are never cached; events report the others without tokens.
        """
        return cls(
            ticket=ticket,
            tokens=[],
            prompt_tokens=prompt_tokens,
            expected_cached=expected_cached,
            length=prompt_tokens + answer_tokens,
            blocks=list(blocks),
            loads=loads,
        )

    @property
    def left(self) -> int:
        """Return the steps until its answer ends, after its first token."""
        # No step follows the last token of an answer.
        return self.length - 1 - self.computed

    @property
    def queued_tokens(self) -> int:
        """Return the tokens that a replica reports of it while it waits."""
        return max(1, self.prompt_tokens - self.expected_cached)


@dataclass(frozen=True)
class StepOutcome:
    """The result of the ended steps: each job with its time, in order."""

    events: list[KvEvent] = field(default_factory=list)
    first_tokens: list[tuple[Job, float]] = field(default_factory=list)
    finished: list[tuple[Job, float]] = field(default_factory=list)


class SimulatedEngine:
    """An engine. Call `advance` up to a time before `submit` at it. Times are seconds of any one
    clock."""

    def __init__(self, hardware: Hardware, tiers: TierSettings | None = None) -> None:
        self._hardware = hardware
        self._cache = BlockCache(hardware.blocks)
        self._tiers: SimulatedTiers | None = None
        if tiers is not None:
            rate, size = hardware.prefill_rate, hardware.block_tokens
            self._tiers = SimulatedTiers(tiers, rate, size, lambda: self._now)
        # requests that no step has seen yet, and those whose blocks are being loaded
        self._arrived: list[Job] = []
        self._loading: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._prefilled: list[Job] = []
        self._running: list[Job] = []
        self._events: list[KvEvent] = []
        self._step_began = 0.0
        self._now = self._first_token_at = 0.0
        # Whether the current step is one of many equal ones.
        self._steady = False
        # whether the step computes no prompt, and whether the engine only waits for loads
        self._decodes_only = self._only_loads = False
        # learned in the same way as by the engine's adapter
        self._inter_token = Ewma(memory=20.0)
        self._decode_time = DecodeTime()
        self._step_time = StepTime()
        self._prefill_rate = PrefillRate()
        # results of the last two; None: to be computed again
        self._learned: tuple[float | None, tuple[float, float]] | None = None
        # End of the current step; None while there is no work.
        self.next_at: float | None = None
        # Tokens generated so far.
        self.generated = 0

    def submit(self, job: Job, now: float) -> None:
        """Add a request. Raises ValueError for a request that never fits."""
        size = self._hardware.block_tokens
        if -(-job.length // size) > self._hardware.blocks or job.prompt_tokens < 1:
            raise ValueError(f"{job.length} tokens do not fit")
        if job.tokens:
            job.blocks = block_hashes(job.tokens, size)
        job.came_at = self._now = now
        self._waiting.append(job)
        if self._tiers is not None:
            self._arrived.append(job)
        self._steady = False
        if self.next_at is None or self._only_loads:
            self._begin_step(now)

    def advance(self, now: float) -> StepOutcome:
        outcome = StepOutcome()
        while self.next_at is not None and self.next_at <= now:
            if self._steady:
                self._skip(now)
            self._end_step(self.next_at, outcome)
        self._now = now
        return outcome

    @property
    def next_change_at(self) -> float | None:
        """Return when a request gets its first or last token, or the current step computes on a
        prompt; None while idle."""
        if self.next_at is None or not self._steady:
            return self.next_at
        return self.next_at + (self._steps_alike() - 1) * (self.next_at - self._step_began)

    def cached_tokens(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of these it has cached in whole blocks."""
        size = self._hardware.block_tokens
        return size * self.cached_blocks(block_hashes(tokens, size))

    def cached_blocks(self, blocks: Sequence[int]) -> int:
        """Return how many leading hashes of these it has cached."""
        return sum(1 for _ in takewhile(self._cache.holds, blocks))

    def tier_depths(self, blocks: Sequence[int], cached: int) -> tuple[int, int]:
        """Return how many leading hashes are in the host tier or closer to the device, and how many
        in any tier. The first `cached` are cached."""
        return (cached, cached) if self._tiers is None else self._tiers.depths(blocks, cached)

    def serves(self, block: int) -> bool:
        """Return whether other engines can pull a block from it."""
        return self._tiers is not None and self._tiers.serves(block)

    @property
    def unscheduled(self) -> int:
        """Return vLLM's `num_requests_waiting`: requests that it has not started."""
        return sum(job.admitted_at is None for job in self._waiting)

    def load(self, segment_tokens: int = 0) -> dict[str, Any]:
        """Return the fields of `ReplicaLoad` that an engine reports"""
        waiting = [*self._prefilled, *self._waiting]
        busy = bool(waiting or self._running)
        if self._learned is None:
            self._learned = self._prefill_rate.mean, self._step_time.line()
        prefill_rate, (step_s, sequence_s) = self._learned
        queued = [(job.came_at, job.queued_tokens) for job in waiting]
        host_tokens = disk_tokens = peer_tokens = 0
        host_load_rate = disk_load_rate = peer_load_rate = 0.0
        if self._tiers is not None:
            host_tokens = sum(job.loads.host_tokens for job in waiting)
            disk_tokens = sum(job.loads.disk_tokens for job in waiting)
            peer_tokens = sum(job.loads.peer_tokens for job in waiting)
            host_load_rate, disk_load_rate, peer_load_rate = self._tiers.rates
        return {
            "queue": ReplicaQueue(
                waiting=len(waiting),
                running=len(self._running),
                prefill_tokens=queued_tokens(queued, self._first_token_at, self._now, prefill_rate),
                host_tokens=host_tokens,
                disk_tokens=disk_tokens,
                peer_tokens=peer_tokens,
            ),
            "cache": ReplicaCache(
                use=self._cache.in_use / self._hardware.blocks if busy else 0.0,
                capacity_tokens=self._hardware.blocks * self._hardware.block_tokens,
                segment_tokens=segment_tokens,
            ),
            "pace": EnginePace(
                prefill_rate=prefill_rate or self._hardware.prefill_rate,
                inter_token_latency=self._inter_token.mean if self._running else 0.0,
                prefill_learned=prefill_rate is not None,
                step_s=step_s,
                sequence_s=sequence_s,
                decode_s=self._decode_time.mean,
                host_load_rate=host_load_rate,
                disk_load_rate=disk_load_rate,
                peer_load_rate=peer_load_rate,
            ),
            "max_sequences": self._hardware.sequences,
            "output_tokens": self.generated,
        }

    def _begin_step(self, now: float) -> None:
        self._step_began = now
        if self._tiers is not None:
            self._carry_loads(self._tiers, now)
        room = self._hardware.step_tokens - len(self._running)
        computed = 0
        while computed < room and (job := self._next_prompt(now)) is not None:
            tokens = min(room - computed, job.prompt_tokens - job.computed)
            computed += tokens
            job.computed += tokens
            self._store(job)
            if job.computed < job.prompt_tokens:
                break
            self._waiting.remove(job)
            self._prefilled.append(job)
        self._only_loads = not self._prefilled and not self._running and not computed
        if self._only_loads:
            self._steady = False
            self.next_at = min((job.loaded_at for job in self._loading), default=None)
            return
        # Waiting requests are admitted when another one ends, and new ones after this step.
        self._decodes_only = not computed
        self._steady = (
            self._decodes_only
            and not self._loading
            and all(job.stored >= len(job.blocks) for job in self._running)
        )
        decode_s = self._hardware.sequence_s * len(self._running)
        prefill_s = computed / self._hardware.prefill_rate
        self.next_at = now + self._hardware.step_s + decode_s + prefill_s

    def _next_prompt(self, now: float) -> Job | None:
        """Return the first waiting request that can be computed now; None without one."""
        if len(self._running) + len(self._prefilled) >= self._hardware.sequences:
            return None
        has_room = True
        for job in self._waiting:
            if job.admitted_at is not None:
                return job
            if job.loaded_at == math.inf and has_room:
                has_room = self._allocate(job, now)
                if not has_room and self._tiers is None:
                    return None
            if job.loaded_at <= now:
                job.admitted_at = now
                return job
        return None

    def _allocate(self, job: Job, now: float, only_loads: bool = False) -> bool:
        """Give a request its blocks, and begin to load those that are in tiers. Return false
        without room, or with `only_loads` if it loads none."""
        size = self._hardware.block_tokens
        # The last prompt token is always computed, because the engine continues from it.
        most = (job.prompt_tokens - 1) // size
        cached = self.cached_blocks(job.blocks[:most])
        loaded: Sequence[int] = ()
        if self._tiers is not None:
            loaded = self._tiers.found(job.blocks[:most], cached, job.loads)
        if only_loads and not loaded:
            return False
        blank = -(-job.length // size) - cached
        evicted = self._cache.use(job.blocks[:cached], blank)
        if evicted is None:
            return False
        if evicted:
            self._events.append(BlockRemoved(list(evicted), "GPU"))
        job.taken, job.blank, job.stored = job.blocks[:cached], blank, cached
        job.computed = job.cached_tokens = (cached + len(loaded)) * size
        job.loaded_at = now
        if self._tiers is not None:
            self._tiers.touch(job.blocks)
            if loaded:
                job.loaded_at, events = self._tiers.begin(loaded, job.loads)
                self._events += events
                self._loading.append(job)
        return True

    def _carry_loads(self, tiers: SimulatedTiers, now: float) -> None:
        """End the loads that are complete, and begin those of new requests."""
        self._now = now
        self._events += tiers.end()
        for job in self._loading:
            if job.loaded_at <= now:
                self._store(job)
        self._loading = [job for job in self._loading if job.loaded_at > now]
        for job in self._arrived:
            self._allocate(job, now, only_loads=True)
        self._arrived = []

    def _store(self, job: Job) -> None:
        """Cache newly complete blocks; the events report each run of them."""
        size = self._hardware.block_tokens
        run: list[int] = []
        while job.stored < min(job.computed // size, len(job.blocks)):
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
        if self._tiers is not None:
            self._events += self._tiers.store(run)

    def _steps_alike(self) -> int:
        """Return the number of equal steps from the current one on, in a steady state."""
        # If no running request leaves room, a waiting one stays until one ends.
        return min(job.left for job in self._running)

    def _skip(self, now: float) -> None:
        """Take the equal steps that end by `now`, except the last."""
        assert self.next_at is not None
        step_s = self.next_at - self._step_began
        steps = self._steps_alike() - 1
        if steps * step_s > now - self.next_at:
            steps = int((now - self.next_at) / step_s)
        if steps < 1:
            return
        for job in self._running:
            job.computed += steps
        self.generated += steps * len(self._running)
        latencies = [step_s] * len(self._running)
        for _ in range(steps):
            self._step_time.add(latencies, served=len(latencies))
            self._decode_time.add_step(latencies, len(latencies))
        self._inter_token.add_times(step_s, steps * len(self._running))
        self._step_began += steps * step_s
        self.next_at = self._step_began + step_s

    def _end_step(self, now: float, outcome: StepOutcome) -> None:
        if self._running:
            self._inter_token.add_times(now - self._step_began, len(self._running))
            latencies = [now - self._step_began] * len(self._running)
            self._decode_time.add_step(latencies, len(latencies))
            if self._decodes_only:
                self._step_time.add(latencies, served=len(latencies))
        self.generated += len(self._running) + len(self._prefilled)
        for job in self._running:
            job.computed += 1
            if job.stored < len(job.blocks):
                self._store(job)
        for job in self._prefilled:
            job.first_at = self._first_token_at = now
            outcome.first_tokens.append((job, now))
        self._running += self._prefilled
        self._prefilled = []
        ended = [job for job in self._running if job.left <= 0]
        for job in ended:
            self._learn(job)
            self._cache.release(job.taken, job.blank)
            if self._tiers is not None:
                self._tiers.touch(job.blocks)
            outcome.finished.append((job, now))
        if ended:
            self._running = [job for job in self._running if job.left > 0]
        outcome.events.extend(self._events)
        self._events = []
        self._begin_step(now)

    def _learn(self, job: Job) -> None:
        assert job.admitted_at is not None
        assert job.first_at is not None
        self._learned = None
        self._decode_time.add_answer(job.length - job.prompt_tokens)
        own = job.prompt_tokens - job.cached_tokens
        self._prefill_rate.add(job.first_at, job.first_at - job.admitted_at, own)


def block_hashes(tokens: Sequence[int], block_tokens: int) -> list[int]:
    """Return a chained hash per whole block: equal if and (almost certainly) only if everything
    before is equal."""
    packed = array("I", tokens).tobytes()
    length = 4 * block_tokens
    chained, hashes = 0, []
    for start in range(0, len(packed) - length + 1, length):
        chained = hash((chained, packed[start : start + length]))
        hashes.append(chained)
    return hashes
