"""A pool of simulated engines and the gateways before it, from one event to the next.

The gateways are the `PoolScheduler`s that run in production, the replicas those of the backtest.
Snapshots go out ten times a second; the index knows at once; other gateways learn of a placement
`HEARD_AFTER_S` later. Everything comes from the seed.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile

from msgspec.structs import replace

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import Attempt, PoolSettings, SchedulingRequest
from router.board.load import LoadReport
from router.board.recent import Placed
from router.choice.placement import reusable_tokens
from router.choice.policies import PlacementRequest
from simulator.engines import Hardware, Job, SimulatedEngine
from simulator.fleet import Replica
from tests.router.loads import changed

SEGMENT = 128
SNAPSHOT_PERIOD_S = 0.1
HEARD_AFTER_S = 0.002
ARRIVALS_TOLD_S = 1.0

# as many sequences as vLLM runs by default, and a cache that evicts nothing
GPU = Hardware(20_000, 0.008, 0.0001, sequences=256, block_tokens=SEGMENT, blocks=10**6)
CPU = Hardware(1_500, 0.02, 0.004, sequences=256, block_tokens=SEGMENT, blocks=10**6)


@dataclass(frozen=True)
class Turn:
    user_tokens: int
    output_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True)
class Conversation:
    """Turns, each after its predecessor's answer, behind a system prompt that others may share."""

    arrives_at: float
    turns: Sequence[Turn]
    system: int = 0
    system_tokens: int = 0

    def prompt_tokens(self, turn: int) -> int:
        before = sum(each.user_tokens + each.output_tokens for each in self.turns[:turn])
        return self.system_tokens + before + self.turns[turn].user_tokens

    def segments(self, number: int, tokens: int) -> list[int]:
        """A number for each whole segment of its first `tokens`, as the `number`th conversation."""
        shared, own = self.system_tokens // SEGMENT, 1_000_000 + number
        return [(self.system if i < shared else own) << 24 | i for i in range(tokens // SEGMENT)]


@dataclass(eq=False)
class Request:
    """One turn of the `number`th conversation, placed."""

    conversation: Conversation
    number: int
    turn: int
    gateway: PoolScheduler
    attempt: Attempt
    replica: Replica
    job: Job
    ttft: float = 0.0


@dataclass(frozen=True)
class Report:
    """`placed`: requests by replica; `cached_ratio`: of what one endless cache would have had."""

    ttfts: list[float]
    placed: list[int]
    cached_ratio: float

    @property
    def mean_ttft(self) -> float:
        return statistics.mean(self.ttfts)

    @property
    def p99_ttft(self) -> float:
        return sorted(self.ttfts)[int(0.99 * len(self.ttfts))]

    @property
    def most_over_mean(self) -> float:
        return max(self.placed) / statistics.mean(self.placed)

    @property
    def variation(self) -> float:
        """Coefficient of variation of the requests by replica."""
        return statistics.pstdev(self.placed) / statistics.mean(self.placed)


class SimulatedPool:
    def __init__(
        self, policy: str, hardware: Hardware, replicas: int, gateways: int = 1, seed: int = 1
    ) -> None:
        self._now = 0.0
        self._rng = random.Random(seed)
        self._replicas = [Replica(i, 0.0, 0.0, SimulatedEngine(hardware)) for i in range(replicas)]
        self._gateways = [
            PoolScheduler(lambda: self._now, PoolSettings(policy=policy), rng=self._rng)
            for _ in range(gateways)
        ]
        for gateway in self._gateways:
            gateway.announce = partial(self._announce, gateway)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._requests: dict[str, Request] = {}
        self._under_way = 0
        self._ever_cached: set[int] = set()
        self._reusable_tokens = 0
        # slot -> when its engine changes next
        self._wakes: dict[int, float] = {}

    def serve(self, conversations: Sequence[Conversation]) -> Report:
        """The outcome of this traffic, from the first arrival to the last answer."""
        self._under_way = len(conversations)
        for number, conversation in enumerate(conversations):
            self._at(conversation.arrives_at, partial(self._ask, conversation, number, 0))
        self._snapshot()
        while self._events:
            self._now, _, happens = heapq.heappop(self._events)
            happens()
        served = self._requests.values()
        placed = Counter(request.replica.slot for request in served)
        cached = sum(request.job.cached_tokens for request in served)
        return Report(
            ttfts=[request.ttft for request in served],
            placed=[placed[replica.slot] for replica in self._replicas],
            cached_ratio=cached / self._reusable_tokens if self._reusable_tokens else 1.0,
        )

    def _at(self, when: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happens))

    def _announce(self, origin: PoolScheduler, placed: Placed) -> None:
        for gateway in self._gateways:
            if gateway is not origin:
                self._at(self._now + HEARD_AFTER_S, partial(gateway.heard, placed))

    def _snapshot(self) -> None:
        since = self._now - ARRIVALS_TOLD_S
        newest_first = reversed(self._requests.values())
        lately = list(takewhile(lambda of: of.attempt.request.arrived >= since, newest_first))
        loads = []
        for replica in self._replicas:
            self._advance(replica)
            load = replace(
                replica.load(SEGMENT),
                sequence=next(self._numbers),
                arrived=tuple(of.job.ticket for of in lately if of.replica is replica),
            )
            noise = self._rng.uniform(0.9, 1.1)
            loads.append(changed(load, inter_token_latency=noise * load.pace.inter_token_latency))
        for gateway in self._gateways:
            gateway.board.update(loads)
        if self._under_way:
            self._at(self._now + SNAPSHOT_PERIOD_S, self._snapshot)

    def _ask(self, conversation: Conversation, number: int, turn: int) -> None:
        gateway = self._rng.choice(self._gateways)
        prompt_tokens = conversation.prompt_tokens(turn)
        output_tokens = conversation.turns[turn].output_tokens
        # nothing is computed of an answer's last token
        segments = conversation.segments(number, prompt_tokens + output_tokens - 1)
        prompt = segments[: prompt_tokens // SEGMENT]
        keys = tuple(segment.to_bytes(8, "big") for segment in prompt)
        depths = {each.slot: each.engine.cached_blocks(prompt) for each in self._replicas}
        asked = SchedulingRequest(PlacementRequest(prompt_tokens, keys), depths, self._now)
        attempt = gateway.decide(asked, gateway.consider(asked)).attempt
        assert attempt is not None
        assert attempt.chosen is not None
        replica, expected = self._replicas[attempt.chosen.slot], attempt.chosen.cached_tokens
        job = Job.hashed(attempt.ticket, prompt_tokens, output_tokens, segments, expected)
        request = Request(conversation, number, turn, gateway, attempt, replica, job)
        self._requests[job.ticket] = request
        known = SEGMENT * sum(1 for _ in takewhile(self._ever_cached.__contains__, prompt))
        self._reusable_tokens += min(known, reusable_tokens(prompt_tokens, SEGMENT))
        self._ever_cached.update(prompt)
        self._advance(replica, job)

    def _advance(self, replica: Replica, arriving: Job | None = None) -> None:
        outcome = replica.engine.advance(self._now)
        if arriving is not None:
            replica.engine.submit(arriving, self._now)
        for job, at in outcome.first_tokens:
            self._answering(self._requests[job.ticket], at)
        for job, _ in outcome.finished:
            self._answered(self._requests[job.ticket])
        changes_at = replica.engine.next_change_at
        if changes_at is not None and changes_at != self._wakes.get(replica.slot):
            self._wakes[replica.slot] = changes_at
            self._at(changes_at, partial(self._advance, replica))

    def _answering(self, request: Request, now: float) -> None:
        load = request.replica.load(SEGMENT)
        request.ttft = now - request.attempt.request.arrived
        report = LoadReport(
            next(self._numbers),
            load.queue,
        )
        request.gateway.answered(request.attempt, request.replica.name, report)
        request.gateway.observed(request.attempt, request.ttft)

    def _answered(self, request: Request) -> None:
        request.gateway.ended(request.attempt, request.replica.name)
        self._ever_cached.update(request.job.blocks)
        turns, turn = request.conversation.turns, request.turn + 1
        if turn == len(turns):
            self._under_way -= 1
        else:
            ask = partial(self._ask, request.conversation, request.number, turn)
            self._at(self._now + turns[turn].think_s, ask)


def arrivals(rng: random.Random, rate: float, seconds: float) -> list[float]:
    """A Poisson process."""
    times, now = [], 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        times.append(now)
    return times


def multi_turn(
    rate: float, seconds: float, user: tuple[int, int] = (50, 500), system_tokens: int = 0
) -> list[Conversation]:
    """Conversations of 8 turns; with `system_tokens` they share one system prompt."""
    rng = random.Random(rate)

    def turn() -> Turn:
        return Turn(rng.randint(*user), rng.randint(30, 150), rng.expovariate(1 / 3))

    return [
        Conversation(at, [turn() for _ in range(8)], system_tokens=system_tokens)
        for at in arrivals(rng, rate, seconds)
    ]


def single_turns(
    rate: float,
    seconds: float,
    private: tuple[int, int],
    shared: float = 0.0,
    system_tokens: int = 0,
    systems: int = 1,
) -> list[Conversation]:
    """Single requests. A `shared` part of them starts with one of `systems` system prompts, the
    rest are private."""
    rng = random.Random(rate)

    def one(at: float) -> Conversation:
        output = rng.randint(30, 150)
        if rng.random() >= shared:
            return Conversation(at, [Turn(rng.randint(*private), output)])
        turn = Turn(rng.randint(50, 400), output)
        return Conversation(at, [turn], rng.randrange(systems), system_tokens)

    return [one(at) for at in arrivals(rng, rate, seconds)]
