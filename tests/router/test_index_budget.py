"""No lookup takes longer than its budget, whatever a server does not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import hiredis
import pytest

from router.index.index import PrefixIndex
from router.redis.redis_client import connect
from tests.fakes.skipping_loop import SkippingLoop
from tests.router.index_lookups import BUDGET_S, POOL, keys_of

# A replica with this many of a prompt's segments is found by the second read.
SEGMENTS, HELD = 300, 100
Answer = Callable[[list[bytes], Callable[[bytes], None]], None]


def accepts_nothing(command: list[bytes], send: Callable[[bytes], None]) -> None:
    """The connection is made, but not even its first command is answered."""


def answers_no_read(command: list[bytes], send: Callable[[bytes], None]) -> None:
    if command[0] != b"MGET":
        send(b"+OK\r\n")


def answers_late(after_s: float, command: list[bytes], send: Callable[[bytes], None]) -> None:
    """Every read is answered after this time: slot 0 has the first segments."""
    if command[0] != b"MGET":
        send(b"+OK\r\n")
        return
    keys = command[1:]
    found = [b"$1\r\n\x80\r\n" if int(key[-16:]) < HELD else b"$-1\r\n" for key in keys]
    reply = b"*%d\r\n" % len(keys) + b"".join(found)
    asyncio.get_running_loop().call_later(after_s, send, reply)


class Server(asyncio.Protocol):
    """Redis, as far as `answer` answers its commands."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._parser = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._send = transport.write

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        while (command := self._parser.gets()) is not False:
            self._answer(command, self._send)


@asynccontextmanager
async def index_of(answer: Answer) -> AsyncIterator[PrefixIndex]:
    """An index whose Redis answers commands like this."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Server, answer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    redis = connect(f"redis://127.0.0.1:{port}/0", decode=False)
    index = PrefixIndex(redis, POOL, BUDGET_S)
    try:
        yield index
    finally:
        await index.aclose()
        await redis.aclose()
        server.close()


def seconds_of_lookups(answer: Answer, lookups: int = 1) -> list[tuple[float, bool]]:
    """Return how long each lookup took, in the loop's time, and whether it was answered."""

    async def play() -> list[tuple[float, bool]]:
        took: list[tuple[float, bool]] = []
        loop = asyncio.get_running_loop()
        async with index_of(answer) as index:
            for _ in range(lookups):
                began = loop.time()
                depths = await index.lookup(keys_of(SEGMENTS))
                took.append((round(loop.time() - began, 9), depths == {0: HELD}))
        return took

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(play())


@pytest.mark.parametrize(
    "answer",
    [
        accepts_nothing,
        answers_no_read,
        partial(answers_late, 2 * BUDGET_S),
        # both reads together exceed it
        partial(answers_late, 0.7 * BUDGET_S),
    ],
    ids=["while it connects", "while it reads", "late", "late in its second read"],
)
def test_a_lookup_ends_at_its_budget(answer: Answer) -> None:
    # the third failure opens the breaker
    assert seconds_of_lookups(answer, 3) == [(BUDGET_S, False)] * 3


def test_a_lookup_that_is_answered_within_its_budget_has_the_answer() -> None:
    took = seconds_of_lookups(partial(answers_late, 0.4 * BUDGET_S))
    assert took == [(round(0.8 * BUDGET_S, 9), True)]


def test_nonconsecutive_failures_do_not_open_the_breaker() -> None:
    # a lookup that is answered has two reads
    is_refused = iter([True, True, False, False, True, True, False, False])

    def answer(command: list[bytes], send: Callable[[bytes], None]) -> None:
        if command[0] == b"MGET" and next(is_refused):
            send(b"-ERR of this test\r\n")
        else:
            answers_late(0.0, command, send)

    answered = [was_answered for _, was_answered in seconds_of_lookups(answer, 6)]
    assert answered == [False, False, True, False, False, True]


def test_lookups_return_at_once_while_the_breaker_is_open() -> None:
    assert seconds_of_lookups(accepts_nothing, 5)[3:] == [(0.0, False)] * 2
