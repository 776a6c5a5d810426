"""One connection to Redis with many concurrent calls.

redis-py opens the connection (TLS, users, Sentinel, Cluster) and hands it over. From then on
commands are written at once, and replies are assigned in their order. A call costs half of one
through redis-py's pool, and leaves nothing behind when it is cancelled: its reply is dropped on
arrival. Raises REDIS_FAILURES; once the connection has ended, every call does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import hiredis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError

from router.redis.redis_client import AsyncRedis


class Lane(asyncio.Protocol):
    """Created by `open_lane`. Not for pub/sub, nor for commands that change a connection's state.

    `on_closed` is called once, when the connection has ended for any reason.
    """

    def __init__(
        self, connection: AbstractConnection, on_closed: Callable[[], None] = lambda: None
    ) -> None:
        self._connection = connection
        self._on_closed = on_closed
        # redis-py has no public access to a connection's transport.
        self._transport: asyncio.Transport = cast(Any, connection)._writer.transport
        self._parser = hiredis.Reader(protocolError=InvalidResponse, replyError=ResponseError)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self.closed = self._transport.is_closing()
        self._transport.set_protocol(self)

    async def mget(
        self, keys: Sequence[bytes], deadline: float | None = None
    ) -> list[bytes | None]:
        """Return the keys' strings; None for a key that does not exist or has another type.

        Raises TimeoutError if there is no reply at `deadline`, in the loop's time.
        """
        values: list[bytes | None] = await self.call("MGET", *keys, deadline=deadline)
        if not isinstance(values, list) or len(values) != len(keys):
            raise self._fail("a reply of an unexpected form")
        return values

    async def call(self, *command: str | bytes | int | float, deadline: float | None = None) -> Any:
        """Return the reply to a command, with strings as bytes. Raises like `mget`."""
        [reply], loop = self.send(command), asyncio.get_running_loop()
        timer = loop.call_at(deadline, _expire, loop, reply) if deadline is not None else None
        try:
            return await reply
        finally:
            if timer is not None:
                timer.cancel()

    def send(self, *commands: Sequence[str | bytes | int | float]) -> list[asyncio.Future[Any]]:
        """Send commands at once, because each write wakes Redis. Return a future per reply."""
        if self.closed:
            raise RedisConnectionError("connection lost")
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Any]] = [loop.create_future() for _ in commands]
        self._waiting += replies
        packed = [hiredis.pack_command(cast(Any, command)) for command in commands]
        self._transport.write(b"".join(packed))
        return replies

    async def aclose(self) -> None:
        self._fail("closed by Antefix")
        await self._connection.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                self._hand_out(reply)
        except (InvalidResponse, IndexError) as error:  # IndexError: a reply without a request
            self._fail(f"out of step: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error or "closed by Redis"))

    def _hand_out(self, reply: Any) -> None:
        if isinstance(reply, hiredis.PushNotification):
            return
        waiting = self._waiting.popleft()
        if waiting.done():
            return
        if isinstance(reply, ResponseError):
            waiting.set_exception(reply)
        else:
            waiting.set_result(reply)

    def _fail(self, reason: str) -> RedisConnectionError:
        """End the connection, and every call that waits for a reply."""
        error = RedisConnectionError(f"connection lost: {reason}")
        if not self.closed:
            self.closed = True
            self._on_closed()
        self._transport.abort()
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(error)
        return error


def _expire(loop: asyncio.AbstractEventLoop, reply: asyncio.Future[Any]) -> None:
    # A loop that was blocked may run its timers before it reads a reply that has arrived, so it
    # gets one more turn.
    loop.call_soon(loop.call_soon, _give_up, reply)


def _give_up(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())


class KeptLane:
    """A lane to the server with the key, opened on demand, and again after any failure: another
    server may have the key now."""

    def __init__(self, redis: AsyncRedis, key: bytes) -> None:
        self._redis = redis
        self._key = key
        self._lane: Lane | None = None

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[Lane]:
        """Yield a lane for work that takes at most this long, including the opening. Raises
        REDIS_FAILURES."""
        try:
            async with asyncio.timeout(seconds):
                if self._lane is None or self._lane.closed:
                    self._lane = await open_lane(self._redis, self._key)
                yield self._lane
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            await lane.aclose()


async def open_lane(
    redis: AsyncRedis, key: bytes, on_closed: Callable[[], None] = lambda: None
) -> Lane:
    """Return a lane to the server with the key. It has no timeout: set a limit."""
    connection: AbstractConnection
    if isinstance(redis, RedisCluster):
        # An ordinary command first: it finds the current server of the key's hash slot.
        await redis.execute_command("EXISTS", key)
        node = redis.get_node_from_key(cast(str, key))
        assert node is not None
        connection = node.connection_class(**node.connection_kwargs)
    else:
        connection = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    connection.retry = Retry(NoBackoff(), retries=0)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        return Lane(connection, on_closed)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
