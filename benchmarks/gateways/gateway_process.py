"""One gateway process with what it takes to place requests, and nothing of HTTP.

It plays its share of the arrivals: token ids become segment keys, the index is asked, the
scheduler decides, the request goes to a simulated engine, and what came of it is noted. What a
gateway without a shared index would know is `OwnPlacements`. Ends with its parent.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from autoscaling.pool_scheduler import PoolScheduler, PoolSettings
from autoscaling.scheduling import SchedulingRequest
from benchmarks.gateways.engine_host import MODEL, Ask, Told, frame, frames
from benchmarks.gateways.results import GatewayReport, ServedRequest
from benchmarks.stand.arrivals import Arrival
from benchmarks.stand.child_process import hear, say
from benchmarks.stand.own_placements import OwnPlacements
from router.policies import PlacementRequest
from router.pool_feeds import PoolFeeds
from router.redis_client import connect
from router.segment_keys import Namespace, SegmentHasher, pack

READY_S = 20.0
# How long after the last arrival an answer may take.
GRACE_S = 20.0


@dataclass(frozen=True)
class GatewayProcessSettings:
    """`shared`: reads the index and hears of others' placements; else it knows its own alone."""

    redis_url: str = field(repr=False)
    pool: str
    socket: str
    index_key: bytes = field(repr=False)
    replicas: int
    shared: bool
    budget_s: float
    policy: str = "prefix"


class BenchmarkGateway:
    def __init__(self, settings: GatewayProcessSettings, max_segments: int = 65536) -> None:
        self._settings = settings
        text, binary = (connect(settings.redis_url, decode=decode) for decode in (True, False))
        self._scheduler = scheduler = PoolScheduler(
            time.monotonic, PoolSettings(policy=settings.policy)
        )
        self._feeds = PoolFeeds(
            text,
            binary,
            settings.pool,
            scheduler.board,
            scheduler.gateway,
            scheduler.heard,
            settings.budget_s,
        )
        if settings.shared:
            scheduler.announce = self._feeds.announce
        self._hasher = SegmentHasher(settings.index_key)
        self._own = None if settings.shared else OwnPlacements(max_segments)
        self._answers: dict[str, asyncio.Queue[Told]] = {}
        self._writer: asyncio.StreamWriter
        self.failed = 0

    def background(self) -> Coroutine[Any, Any, None]:
        """What keeps it informed: of loads, and of all else where that is shared."""
        return self._feeds.run() if self._own is None else self._feeds.loads.run()

    async def listen(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._settings.socket)
        async for body in frames(reader):
            told = msgspec.msgpack.decode(body, type=Told)
            if told.ticket in self._answers:
                self._answers[told.ticket].put_nowait(told)

    async def until_ready(self) -> None:
        async with asyncio.timeout(READY_S):
            while not self._ready():  # noqa: ASYNC110  # nothing tells when
                await asyncio.sleep(0.05)

    async def play(self, arrivals: Sequence[Arrival], start: float) -> list[ServedRequest]:
        """All that is served; `start` by `time.monotonic`."""
        end = max((arrival.due for arrival in arrivals), default=0.0) + GRACE_S
        tasks = [asyncio.create_task(self._serve(arrival, start)) for arrival in arrivals]
        done, late = await asyncio.wait(tasks, timeout=start + end - time.monotonic())
        for task in late:
            task.cancel()
        served = [task.result() for task in done if not task.exception()]
        self.failed = len(tasks) - len(served)
        return served

    def report(self, served: list[ServedRequest]) -> GatewayReport:
        index = self._feeds.index
        return GatewayReport(
            served,
            self.failed,
            index.lookups + index.skipped,
            index.failures + index.skipped,
            time.process_time(),
        )

    def _ready(self) -> bool:
        loads = self._scheduler.board.loads()
        return len(loads) == self._settings.replicas and all(x.synced for x in loads.values())

    async def _serve(self, arrival: Arrival, start: float) -> ServedRequest:
        due = start + arrival.due
        await asyncio.sleep(due - time.monotonic())
        began = time.monotonic()
        prompt = arrival.prompt_token_ids()
        keys = self._hasher.keys(Namespace(MODEL), prompt, self._scheduler.board.segment_tokens)
        depths: Mapping[int, int] | None
        if self._own is None:
            depths = await self._feeds.look_up(keys)
        else:
            depths = self._own.depths(keys)
        attempt = self._scheduler.place(
            SchedulingRequest(PlacementRequest(len(prompt), tuple(keys)), depths, began)
        )
        chosen = attempt.chosen
        if chosen is None:
            raise RuntimeError("no replica is known")
        if self._own is not None:
            self._own.placed(keys, chosen.slot)
        answers = self._answers[attempt.ticket] = asyncio.Queue()
        answer = array("I", arrival.answer.token_ids()).tobytes()
        ask = Ask(attempt.ticket, chosen.replica_id, pack(prompt), answer, chosen.cached_tokens)
        self._writer.write(frame(ask))
        sent = time.monotonic()
        try:
            first = await answers.get()
            first_at = time.monotonic()
            self._scheduler.observed(attempt, first_at - attempt.placed_at)
            await answers.get()
            self._scheduler.ended(attempt, chosen.replica_id)
        finally:
            del self._answers[attempt.ticket]
        return ServedRequest(
            due=arrival.due,
            replica=chosen.replica_id,
            prompt_tokens=len(prompt),
            cached_tokens=first.cached_tokens,
            expected_cached_tokens=chosen.cached_tokens,
            predicted_ttft_s=chosen.predicted_ttft_s,
            late=began - due,
            placed_in=sent - began,
            ttft=first_at - due,
            ended=time.monotonic() - start,
        )


async def gateway(
    settings: GatewayProcessSettings, arrivals: Sequence[Arrival], pipe: Connection
) -> None:
    """Say when ready, play from the time that the parent names, report.

    Raises EOFError or CancelledError when the parent is gone before that.
    """
    here = BenchmarkGateway(settings)
    parts = [asyncio.create_task(part) for part in (here.background(), here.listen())]
    try:
        await here.until_ready()
        say(pipe, "ready")
        start = await hear(pipe)
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        # It has nothing more to say: what comes now is its end.
        loop.add_reader(pipe.fileno(), task.cancel)
        served = await here.play(arrivals, start)
        loop.remove_reader(pipe.fileno())
        say(pipe, here.report(served))
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
