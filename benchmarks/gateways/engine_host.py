"""Simulated engines in one process, as gateways find a pool's replicas: over a real Redis.

Each engine has the publisher and the tickets of a real replica; gateway processes send requests
to all of them over one unix socket. A machine that is too slow makes the answers late, which
`HostReport.late_s` tells; what the engines do, and when by their own time, stays right. Ends
when the parent process says so or is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import msgspec

from benchmarks.stand.child_process import hear, say
from deployments.engine.tickets import Tickets
from router.cached_blocks import CachedBlocks
from router.event_stream import EventBatch
from router.load import ReplicaLoad
from router.publisher import IndexPublisher, Lease
from router.redis_client import connect
from router.segment_keys import SegmentHasher
from simulator.engines import Hardware, Job, SimulatedEngine

MODEL = "simulated"
LENGTH_BYTES = 4


class Ask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A gateway's request: `prompt` and `answer` are packed tokens (`segment_keys.pack`)."""

    ticket: str
    replica_id: str
    prompt: bytes
    answer: bytes
    expected_cached: int


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The engine's word on a request: its first token, then its end."""

    ticket: str
    cached_tokens: int
    ended: bool


def frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Bodies until the other side closes."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
            yield await reader.readexactly(length)


@dataclass(frozen=True)
class HostSettings:
    redis_url: str = field(repr=False)
    pool: str
    socket: str
    index_key: bytes = field(repr=False)
    replicas: int
    segment_tokens: int
    hardware: Hardware = field(default_factory=Hardware)


@dataclass(frozen=True)
class HostReport:
    """How late steps were noticed, in seconds, one figure a step; CPU seconds used."""

    late_s: list[float]
    cpu_s: float


class _Replica:
    def __init__(self, settings: HostSettings, number: int) -> None:
        self._id = f"r{number:02}"
        self._engine = SimulatedEngine(settings.hardware)
        self._segment_tokens = settings.segment_tokens
        self._tickets = Tickets(settings.hardware.sequences)
        self._batches: asyncio.Queue[EventBatch] = asyncio.Queue()
        self._submitted = asyncio.Event()
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._sequence = 0
        self.late_s: list[float] = []
        cached = CachedBlocks(SegmentHasher(settings.index_key), MODEL, None, self._segment_tokens)
        self.publisher = IndexPublisher(
            connect(settings.redis_url), settings.pool, cached, self._snapshot
        )
        self.publisher.start(self._events)

    def submit(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        prompt, answer = array("I", ask.prompt), array("I", ask.answer)
        self._tickets.arrive(ask.ticket, reserved=True)
        self._writers[ask.ticket] = writer
        job = Job(ask.ticket, (prompt + answer).tolist(), len(prompt), ask.expected_cached)
        now = time.monotonic()
        self._advance(now)
        self._engine.submit(job, now)
        self._submitted.set()

    async def run(self) -> None:
        while True:
            if (next_at := self._engine.next_at) is None:
                self._submitted.clear()
                await self._submitted.wait()
                continue
            await asyncio.sleep(next_at - time.monotonic())
            now = time.monotonic()
            if now >= next_at:
                self.late_s.append(now - next_at)
            self._advance(now)

    def _advance(self, now: float) -> None:
        outcome = self._engine.advance(now)
        if outcome.events:
            self._batches.put_nowait(EventBatch(outcome.events, lost=False))
        for job, _ in outcome.first_tokens:
            self._tell(self._writers[job.ticket], Told(job.ticket, job.cached_tokens, False))
        for job, _ in outcome.finished:
            self._tickets.leave(job.ticket)
            self._tell(self._writers.pop(job.ticket), Told(job.ticket, job.cached_tokens, True))

    @staticmethod
    def _tell(writer: asyncio.StreamWriter, told: Told) -> None:
        if not writer.is_closing():
            writer.write(frame(told))

    async def _events(self) -> AsyncGenerator[EventBatch, None]:
        while True:
            yield await self._batches.get()

    def _snapshot(self, lease: Lease) -> str:
        self._sequence += 1
        return ReplicaLoad(
            replica_id=self._id,
            slot=lease.slot,
            incarnation=lease.incarnation,
            url="",
            node_ip="",
            segment_tokens=self._segment_tokens,
            synced=lease.synced,
            sequence=self._sequence,
            arrived=self._tickets.lately_arrived(),
            **self._engine.load(),
        ).to_json()


async def host(settings: HostSettings, pipe: Connection) -> None:
    """Serve until the parent says anything or is gone; then report to it."""
    replicas = {f"r{number:02}": _Replica(settings, number) for number in range(settings.replicas)}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for body in frames(reader):
            ask = msgspec.msgpack.decode(body, type=Ask)
            replicas[ask.replica_id].submit(ask, writer)
        writer.close()

    server = await asyncio.start_unix_server(serve, settings.socket)
    engines = [asyncio.create_task(replica.run()) for replica in replicas.values()]
    say(pipe, "ready")
    try:
        with contextlib.suppress(EOFError):
            await hear(pipe)
    finally:
        server.close()
        for engine in engines:
            engine.cancel()
        await asyncio.gather(*(replica.publisher.stop() for replica in replicas.values()))
    late_s = [late for replica in replicas.values() for late in replica.late_s]
    say(pipe, HostReport(late_s, time.process_time()))
