"""An engine's events arrive in order and once, or their loss is reported; vLLM's publisher too."""

import asyncio
import contextlib
import logging
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from router.index.event_stream import EventBatch, EventStream
from router.index.kv_events import BlockRemoved
from tests.waiting import until

END = (-1).to_bytes(8, "big", signed=True)
# Importing vLLM takes ten seconds and more where cores are busy.
VLLM_SECONDS = 200


class Publisher:
    """Publishes numbered batches and sends past ones again, as vLLM does; or fails to."""

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self._context = zmq.asyncio.Context()
        self._folder = folder
        self._past: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._number = 0
        self.requests = 0
        self.answering = asyncio.Event()
        self.answering.set()
        # XPUB is a PUB that reports its subscribers.
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.bind(f"ipc://{folder}/events")
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(f"ipc://{folder}/replay")
        self._task = asyncio.create_task(self._answer())

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        async with asyncio.timeout(60):
            await self._pub.recv()

    async def publish(self, *, lost_on_the_way: bool = False, payload: bytes | None = None) -> None:
        """A batch that removes a block whose hash is the batch's number."""
        number, self._number = self._number, self._number + 1
        payload = payload or batch_of(number)
        if not lost_on_the_way:
            await self.send([b"", number.to_bytes(8, "big"), payload])
        self._past.append((number, payload))

    async def send(self, frames: list[bytes]) -> None:
        await self._pub.send_multipart(frames)

    def forget(self, number: int) -> None:
        self._past = deque([p for p in self._past if p[0] != number], self._past.maxlen)

    async def _answer(self) -> None:
        while True:
            client, _, first = await self._router.recv_multipart()
            self.requests += 1
            await self.answering.wait()
            for number, payload in self._past:
                if number >= int.from_bytes(first, "big"):
                    frames = [client, b"", b"", number.to_bytes(8, "big"), payload]
                    await self._router.send_multipart(frames)
            await self._router.send_multipart([client, b"", b"", END, b""])


class Reader:
    """Collects what a stream yields."""

    def __init__(self, folder: Path) -> None:
        self.stream = EventStream(f"ipc://{folder}/events", f"ipc://{folder}/replay")
        self.batches: list[EventBatch] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self.stream.batches():
            self.batches.append(batch)

    async def read(self, count: int, within_s: float = 60.0) -> list[tuple[int | None, bool]]:
        """The number and the `lost` of the first `count` batches."""
        await until(lambda: len(self.batches) >= count, within_s)
        return [(number_of(batch), batch.lost) for batch in self.batches]


def batch_of(number: int) -> bytes:
    return msgspec.msgpack.encode([1.0, [BlockRemoved(block_hashes=[number])], 0])


def number_of(batch: EventBatch) -> int | None:
    for event in batch.events:
        assert isinstance(event, BlockRemoved) and isinstance(event.block_hashes[0], int)
        return event.block_hashes[0]
    return None


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    # Not pytest's: the path of a Unix socket has to be short.
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
async def publisher(folder: Path) -> AsyncIterator[Publisher]:
    publisher = Publisher(folder)
    yield publisher
    await publisher.close()


@pytest.fixture
async def reader(folder: Path) -> AsyncIterator[Reader]:
    reader = Reader(folder)
    yield reader
    reader.stream.close()
    await reader.task


async def test_batches_arrive_in_order(publisher: Publisher, reader: Reader) -> None:
    await publisher.subscribed()
    for _ in range(3):
        await publisher.publish()
    assert await reader.read(3) == [(0, False), (1, False), (2, False)]
    assert publisher.requests == 0


async def test_batches_after_listening_began_are_known_without_a_later_one(
    publisher: Publisher, folder: Path
) -> None:
    stream = EventStream(f"ipc://{folder}/events", f"ipc://{folder}/replay")
    stream.listen()
    await publisher.subscribed()
    await publisher.publish()
    batch = await asyncio.wait_for(anext(stream.batches()), 60)
    assert (number_of(batch), batch.lost) == (0, False)
    stream.close()


async def test_batches_lost_in_transit_are_requested(publisher: Publisher, reader: Reader) -> None:
    await publisher.subscribed()
    await publisher.publish()
    await publisher.publish(lost_on_the_way=True)
    await publisher.publish(lost_on_the_way=True)
    await publisher.publish()
    await publisher.publish()
    assert await reader.read(5) == [(n, False) for n in range(5)]
    assert publisher.requests == 1


async def test_batches_from_before_the_subscription_are_requested(folder: Path) -> None:
    publisher = Publisher(folder)
    for _ in range(3):
        await publisher.publish()
    reader = Reader(folder)
    await publisher.subscribed()
    await publisher.publish()
    assert await reader.read(4) == [(n, False) for n in range(4)]
    reader.stream.close()
    await reader.task
    await publisher.close()


async def test_only_events_that_the_engine_no_longer_has_are_lost(
    folder: Path, reader: Reader
) -> None:
    publisher = Publisher(folder, keep=2)
    await publisher.subscribed()
    for _ in range(4):
        await publisher.publish(lost_on_the_way=True)
    # vLLM too sends a batch before it keeps it.
    await publisher.send([b"", (4).to_bytes(8, "big"), batch_of(4)])
    assert await reader.read(3) == [(2, True), (3, False), (4, False)]
    await publisher.close()


async def test_a_gap_in_the_replay_is_reported_as_a_loss(
    publisher: Publisher, reader: Reader
) -> None:
    await publisher.subscribed()
    for _ in range(4):
        await publisher.publish(lost_on_the_way=True)
    publisher.forget(2)
    await publisher.publish()
    assert await reader.read(2) == [(3, True), (4, False)]


async def test_without_an_answer_the_loss_is_reported_and_a_late_answer_is_harmless(
    publisher: Publisher, reader: Reader
) -> None:
    reader.stream.replay_timeout_s = 0.05
    await publisher.subscribed()
    publisher.answering.clear()
    await publisher.publish(lost_on_the_way=True)
    await publisher.publish()
    assert await reader.read(1) == [(1, True)]
    reader.stream.replay_timeout_s = 5.0
    publisher.answering.set()
    await publisher.publish(lost_on_the_way=True)
    await publisher.publish()
    assert await reader.read(3) == [(1, True), (2, False), (3, False)]
    assert publisher.requests == 2


async def test_without_replay_missing_batches_are_reported_as_lost(
    publisher: Publisher, folder: Path
) -> None:
    stream = EventStream(f"ipc://{folder}/events", f"ipc://{folder}/nobody", 0.05)
    first = asyncio.ensure_future(anext(aiter(stream.batches())))
    await publisher.subscribed()
    await publisher.publish(lost_on_the_way=True)
    await publisher.publish()
    assert number_of(await first) == 1 and (await first).lost
    stream.close()


async def test_a_restarted_publisher_is_reported_as_a_loss(folder: Path, reader: Reader) -> None:
    old = Publisher(folder)
    await old.subscribed()
    await old.publish()
    await old.publish()
    await reader.read(2)
    await old.close()
    new = Publisher(folder)
    await new.subscribed()
    await new.publish()
    await new.publish()
    assert (await reader.read(4))[2:] == [(0, True), (1, False)]
    await new.close()


async def test_the_first_batches_of_a_restarted_publisher_are_requested(
    publisher: Publisher, reader: Reader
) -> None:
    await publisher.subscribed()
    await publisher.send([b"", (50).to_bytes(8, "big"), batch_of(50)])
    assert await reader.read(1) == [(50, True)]
    await publisher.publish(lost_on_the_way=True)
    await publisher.publish()
    assert (await reader.read(3))[1:] == [(0, True), (1, False)]


@pytest.mark.parametrize(
    "frames",
    [
        [b"", (0).to_bytes(8, "big"), b"a prompt"],
        [b"", b"a prompt"],
        [b"a prompt"],
    ],
)
async def test_undecodable_events_are_lost_and_logged_once_without_content(
    publisher: Publisher, reader: Reader, caplog: pytest.LogCaptureFixture, frames: list[bytes]
) -> None:
    await publisher.subscribed()
    with caplog.at_level(logging.WARNING, "router.index.event_stream"):
        await publisher.send(frames)
        await publisher.send([b""])
        assert await reader.read(2) == [(None, True), (None, True)]
    assert len(caplog.messages) == 1 and "a prompt" not in caplog.text


async def test_batches_continue_after_one_that_cannot_be_decoded(
    publisher: Publisher, reader: Reader
) -> None:
    await publisher.subscribed()
    await publisher.publish(payload=b"no batch")
    await publisher.publish()
    assert await reader.read(2) == [(None, True), (1, False)]


async def test_closing_ends_the_batches_while_they_wait(
    publisher: Publisher, reader: Reader
) -> None:
    await publisher.subscribed()
    await publisher.publish()
    await reader.read(1)
    reader.stream.close()
    reader.stream.close()
    await asyncio.wait_for(reader.task, 60)


async def test_closing_ends_the_batches_during_a_replay(
    publisher: Publisher, reader: Reader
) -> None:
    await publisher.subscribed()
    publisher.answering.clear()
    await publisher.publish(lost_on_the_way=True)
    await publisher.publish()
    await until(lambda: publisher.requests)
    reader.stream.close()
    await asyncio.wait_for(reader.task, 60)


async def test_a_closed_stream_has_no_batches(folder: Path) -> None:
    stream = EventStream(f"ipc://{folder}/events", f"ipc://{folder}/replay")
    stream.close()
    assert [batch async for batch in stream.batches()] == []


async def test_canceling_the_reader_raises_a_cancellation(
    publisher: Publisher, reader: Reader
) -> None:
    await publisher.subscribed()
    reader.task.cancel()
    reader.stream.close()
    with pytest.raises(asyncio.CancelledError):
        await reader.task
    reader.task = asyncio.create_task(asyncio.sleep(0))


# Two of vLLM's publishers that have sent five batches; each line of input makes one more.
VLLM = """
import sys, time
from vllm.distributed.kv_events import BlockRemoved, KVEventBatch, ZmqEventPublisher

folder = sys.argv[1]
publishers = [
    ZmqEventPublisher(0, f"ipc://{folder}/{name}/events", f"ipc://{folder}/{name}/replay", steps)
    for name, steps in (("long", 1000), ("short", 2))
]

def publish(number):
    for publisher in publishers:
        publisher.publish(KVEventBatch(ts=1.0, events=[BlockRemoved([number], "GPU")]))

for number in range(5):
    publish(number)
while any(len(publisher._buffer) < 2 or publisher._event_queue.qsize() for publisher in publishers):
    time.sleep(0.01)
print("ready", file=sys.stderr, flush=True)
for _ in sys.stdin:
    number += 1
    publish(number)
for publisher in publishers:
    publisher.shutdown()
"""


@pytest.mark.real
async def test_batches_of_vllms_own_publisher_are_read(warm_python: str, folder: Path) -> None:
    for name in ("long", "short"):
        (folder / name).mkdir()
    pipe = asyncio.subprocess.PIPE
    vllm = await asyncio.create_subprocess_exec(
        *(warm_python, "-c", VLLM, str(folder)), stdin=pipe, stderr=pipe, stdout=pipe
    )
    readers = [Reader(folder / "long"), Reader(folder / "short")]
    try:
        assert vllm.stdin is not None and vllm.stderr is not None
        async with asyncio.timeout(VLLM_SECONDS):
            while (line := await vllm.stderr.readline()) != b"ready\n":
                assert line, "vLLM's publisher did not start"
            while any(len(reader.batches) < 3 for reader in readers):
                vllm.stdin.write(b"\n")
                await asyncio.sleep(0.05)
        long, short = [await reader.read(3) for reader in readers]
    finally:
        for reader in readers:
            reader.stream.close()
            await reader.task
        vllm.kill()
        await vllm.communicate()
    assert long == [(number, False) for number in range(len(long))]
    first = short[0][0]
    assert first is not None and first > 0
    assert short == [(first + n, n == 0) for n in range(len(short))]
