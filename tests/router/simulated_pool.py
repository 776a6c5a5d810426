"""A pool of engines and the gateways before it, simulated from one event to the next.

Gateways place with the real load board, policies and memory of recent placements. Engines run
steps as vLLM does: one token for each running request, and waiting prompts in their order with
what is left of the token budget. Each caches prefixes, least recently used segments going first.
Snapshots go out ten times a second; the index knows at once; other gateways hear of a placement
`HEARD_AFTER_S` later. Everything comes from the seed.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from router.load import LoadBoard, ReplicaLoad
from router.placement import place, reusable_tokens
from router.policies import PlacementRequest, make_policy
from router.recent import Placed, RecentPlacements, announcement

SEGMENT = 128
SNAPSHOT_PERIOD_S = 0.1
HEARD_AFTER_S = 0.002
ARRIVALS_TOLD_S = 1.0


@dataclass(frozen=True)
class Hardware:
    """A step takes `step_s`, `per_request_s` for each running request, and its prefill."""

    prefill_rate: float
    step_s: float
    per_request_s: float
    cached_segments: int = 10**6
    step_tokens: int = 2048


GPU = Hardware(prefill_rate=20_000, step_s=0.008, per_request_s=0.0001)
CPU = Hardware(prefill_rate=1_500, step_s=0.02, per_request_s=0.004)


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


@dataclass(eq=False)
class Request:
    conversation: Conversation
    turn: int
    keys: list[bytes]
    prompt_tokens: int
    arrived_at: float
    ticket: str = ""
    cached_tokens: int | None = None
    reusable_tokens: int = 0
    to_prefill: int = 0
    ttft: float = 0.0

    @property
    def prompt_keys(self) -> list[bytes]:
        return self.keys[: self.prompt_tokens // SEGMENT]


@dataclass
class Engine:
    hardware: Hardware
    waiting: deque[Request] = field(default_factory=deque)
    # (the step at whose end it is done, a number, the request)
    running: list[tuple[int, int, Request]] = field(default_factory=list)
    steps: int = 0
    step_under_way: bool = False
    inter_token_latency: float = 0.0
    placed: int = 0
    arrived: deque[tuple[float, str]] = field(default_factory=deque)
    _cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def depth(self, keys: Sequence[bytes]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self._cache), len(keys))

    def store(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self._cache[key] = None
            self._cache.move_to_end(key)
        while len(self._cache) > self.hardware.cached_segments:
            self._cache.popitem(last=False)

    def hit(self, request: Request) -> int:
        most = reusable_tokens(request.prompt_tokens, SEGMENT)
        return min(self.depth(request.prompt_keys) * SEGMENT, most)

    def load(self, slot: int, noise: float) -> ReplicaLoad:
        return ReplicaLoad(
            replica_id=f"r{slot}",
            slot=slot,
            incarnation=f"i{slot}",
            url="",
            node_ip="",
            waiting=len(self.waiting),
            running=len(self.running),
            queued_prefill_tokens=sum(of.to_prefill for of in self.waiting),
            kv_use=0.0,
            kv_capacity_tokens=0,
            prefill_rate=self.hardware.prefill_rate,
            inter_token_latency=self.inter_token_latency * noise if self.running else 0.0,
            segment_tokens=SEGMENT,
            arrived=tuple(ticket for _, ticket in self.arrived),
        )

    def begin_step(self) -> tuple[float, list[Request]]:
        """The step's seconds, and the requests that have their first token after it."""
        left = self.hardware.step_tokens - len(self.running)
        prefilled, first = 0, []
        for request in self.waiting:
            if request.cached_tokens is None:
                request.cached_tokens = self.hit(request)
                request.to_prefill = request.prompt_tokens - request.cached_tokens
            tokens = min(left - prefilled, request.to_prefill)
            request.to_prefill -= tokens
            prefilled += tokens
            if request.to_prefill:
                break
            first.append(request)
        decoding = self.hardware.per_request_s * len(self.running)
        return self.hardware.step_s + decoding + prefilled / self.hardware.prefill_rate, first


@dataclass
class Gateway:
    board: LoadBoard
    recent: RecentPlacements = field(default_factory=RecentPlacements)

    def take(self, placed: Placed, now: float) -> None:
        self.recent.add(placed, now)
        self.board.placed(placed.ticket, placed.slot, placed.uncached_tokens)


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
        self._policy = make_policy(policy)
        self._engines = [Engine(hardware) for _ in range(replicas)]
        self._gateways = [Gateway(LoadBoard(lambda: self._now)) for _ in range(gateways)]
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self._ever_cached: set[bytes] = set()
        self._under_way = 0
        self._done: list[Request] = []

    def serve(self, conversations: Sequence[Conversation]) -> Report:
        """What comes of this traffic, from the first arrival to the last answer."""
        self._under_way = len(conversations)
        for number, conversation in enumerate(conversations):
            self._at(conversation.arrives_at, self._open, number, conversation)
        self._snapshot()
        while self._events:
            self._now, _, happens, of = heapq.heappop(self._events)
            happens(*of)
        reusable = sum(request.reusable_tokens for request in self._done)
        cached = sum(request.cached_tokens or 0 for request in self._done)
        return Report(
            ttfts=[request.ttft for request in self._done],
            placed=[engine.placed for engine in self._engines],
            cached_ratio=cached / reusable if reusable else 1.0,
        )

    def _at(self, when: float, happens: Callable[..., None], *of: Any) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happens, of))

    def _snapshot(self) -> None:
        loads = []
        for slot, engine in enumerate(self._engines):
            while engine.arrived and engine.arrived[0][0] < self._now - ARRIVALS_TOLD_S:
                engine.arrived.popleft()
            loads.append(engine.load(slot, self._rng.uniform(0.9, 1.1)))
        for gateway in self._gateways:
            gateway.board.update(loads)
        if self._under_way:
            self._at(self._now + SNAPSHOT_PERIOD_S, self._snapshot)

    def _open(self, number: int, conversation: Conversation) -> None:
        length = conversation.system_tokens
        length += sum(turn.user_tokens + turn.output_tokens for turn in conversation.turns)
        shared = conversation.system_tokens // SEGMENT
        keys = [
            _key(conversation.system if i < shared else 1_000_000 + number, i)
            for i in range(length // SEGMENT)
        ]
        tokens = conversation.system_tokens + conversation.turns[0].user_tokens
        self._place(Request(conversation, 0, keys, tokens, self._now))

    def _place(self, request: Request) -> None:
        here = self._rng.randrange(len(self._gateways))
        gateway, keys = self._gateways[here], request.prompt_keys
        held = {i: d for i, engine in enumerate(self._engines) if (d := engine.depth(keys))}
        incarnations = {slot: f"i{slot}" for slot in range(len(self._engines))}
        recent = gateway.recent.about(keys, held, incarnations, self._now)
        chosen = place(
            PlacementRequest(request.prompt_tokens, tuple(keys)),
            gateway.board.loads(),
            held,
            recent,
            self._policy,
            self._rng,
        ).ranked[0]
        request.ticket = str(next(self._numbers))
        placed = Placed(
            gateway=str(here),
            ticket=request.ticket,
            slot=chosen.slot,
            incarnation=chosen.incarnation,
            prompt_tokens=request.prompt_tokens,
            uncached_tokens=request.prompt_tokens - chosen.cached_tokens,
            predicted_ttft=chosen.predicted_ttft,
            matched=recent.matched,
            announced=announcement(keys, held.get(chosen.slot, 0)),
        )
        gateway.take(placed, self._now)
        for other in self._gateways:
            if other is not gateway:
                self._at(self._now + HEARD_AFTER_S, self._hear, other, placed)
        self._arrive(self._engines[chosen.slot], request)

    def _hear(self, gateway: Gateway, placed: Placed) -> None:
        gateway.take(placed, self._now)

    def _arrive(self, engine: Engine, request: Request) -> None:
        keys = request.prompt_keys
        known = next((i for i, k in enumerate(keys) if k not in self._ever_cached), len(keys))
        most = reusable_tokens(request.prompt_tokens, SEGMENT)
        request.reusable_tokens = min(known * SEGMENT, most)
        self._ever_cached.update(keys)
        request.to_prefill = request.prompt_tokens - engine.hit(request)
        engine.placed += 1
        engine.arrived.append((self._now, request.ticket))
        engine.waiting.append(request)
        if not engine.step_under_way:
            self._step(engine)

    def _step(self, engine: Engine) -> None:
        engine.step_under_way = bool(engine.waiting or engine.running)
        if engine.step_under_way:
            seconds, first = engine.begin_step()
            self._at(self._now + seconds, self._stepped, engine, seconds, first)

    def _stepped(self, engine: Engine, seconds: float, first: list[Request]) -> None:
        engine.steps += 1
        if engine.running:
            engine.inter_token_latency += 0.2 * (seconds - engine.inter_token_latency)
        for request in first:
            engine.waiting.popleft()
            request.ttft = self._now - request.arrived_at
            engine.store(request.prompt_keys)
            tokens = request.conversation.turns[request.turn].output_tokens
            heapq.heappush(engine.running, (engine.steps + tokens, next(self._numbers), request))
        while engine.running and engine.running[0][0] <= engine.steps:
            self._answered(engine, heapq.heappop(engine.running)[2])
        self._step(engine)

    def _answered(self, engine: Engine, request: Request) -> None:
        self._done.append(request)
        turns = request.conversation.turns
        tokens = request.prompt_tokens + turns[request.turn].output_tokens
        engine.store(request.keys[: tokens // SEGMENT])
        self._ever_cached.update(request.keys[: tokens // SEGMENT])
        if request.turn + 1 == len(turns):
            self._under_way -= 1
            return
        then = turns[request.turn + 1]
        self._at(self._now + then.think_s, self._go_on, request, tokens + then.user_tokens)

    def _go_on(self, before: Request, prompt_tokens: int) -> None:
        self._place(
            Request(before.conversation, before.turn + 1, before.keys, prompt_tokens, self._now)
        )


def _key(owner: int, position: int) -> bytes:
    return (owner << 24 | position).to_bytes(8, "big") + bytes(8)


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
