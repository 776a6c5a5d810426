"""What requests hold of a gateway's memory and time is bounded over all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from deployments.gateway.intake import request_body
from deployments.gateway.intake.bodies import Bodies
from deployments.gateway.intake.long_prompts import LONG_PROMPTS
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, Front, gateway_before
from tests.sentences import assert_sentences
from tests.waiting import until

PADDING = "x" * 3000


def body_of(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": MODEL, "messages": messages, "user": PADDING, **fields}).encode()


def send(front: Front, body: bytes) -> Any:
    headers = {**front.headers, "content-type": "application/json"}
    return front.http.post(front.url + "/v1/chat/completions", data=body, headers=headers)


async def test_the_bodies_of_all_requests_together_are_bounded() -> None:
    engine = FakeEngine()
    engine.pauses_after = 1
    async with gateway_before(engine, max_bodies_bytes=8000) as front:
        bodies = front.gateway.parts.bodies
        streams = [await send(front, body_of(stream=True)) for _ in range(2)]
        held = bodies.held_bytes
        assert held == 2 * len(body_of(stream=True))
        async with send(front, body_of()) as refused:
            assert refused.status == 503
            assert refused.headers["retry-after"] == "1"
            error = (await refused.json())["error"]
            assert error["code"] == "gateway_full"
            assert_sentences(error["message"])
        # what was refused holds nothing, and a small one still fits
        await until(lambda: bodies.held_bytes == held)
        async with send(front, body_of(user="x", model="none")) as small:
            assert small.status == 404
        streams[0].close()
        await until(lambda: bodies.held_bytes == held / 2)
        engine.go_on.set()
        await streams[1].read()
        await until(lambda: bodies.held_bytes == 0)
        async with send(front, body_of()) as again:
            assert again.status == 200
        await until(lambda: bodies.held_bytes == 0)


@pytest.mark.parametrize("refused", [b"{", body_of(model="none"), body_of(n=1000)])
async def test_a_refused_request_holds_nothing(refused: bytes) -> None:
    async with gateway_before(FakeEngine()) as front:
        async with send(front, refused) as answer:
            assert answer.status in (400, 404)
        assert front.gateway.parts.bodies.held_bytes == 0


async def test_streams_go_on_while_a_large_body_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, go_on = threading.Event(), threading.Event()
    parse = request_body.parse

    def slow(body: bytes, max_list_items: int, path: str) -> dict[str, Any]:
        if len(body) > request_body.LARGE_BODY_BYTES:
            parsing.set()
            assert go_on.wait(30)
        return parse(body, max_list_items, path)

    monkeypatch.setattr(request_body, "parse", slow)
    async with gateway_before(FakeEngine()) as front:
        large = asyncio.ensure_future(send(front, body_of(user="x" * 100_000)).__aenter__())
        try:
            await until(parsing.is_set)
            async with send(front, body_of()) as small:
                assert small.status == 200
        finally:
            go_on.set()
        assert (await large).status == 200


async def test_a_large_body_is_parsed_while_no_long_prompt_computes_in_python() -> None:
    """The event loop would wait for one after the other."""
    bodies, body = Bodies(), body_of(user="x" * request_body.LARGE_BODY_BYTES)
    with LONG_PROMPTS.a_turn():
        parsing = asyncio.create_task(bodies.parsed(body, 1))
        await asyncio.sleep(0.1)
        assert not parsing.done()
    assert (await parsing)["model"] == MODEL
    bodies.close()


LARGE = "x" * 100_000


@contextlib.contextmanager
def parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], Parsing]]:
    """The users of large bodies in the order of parsing, which stops until it is let go."""
    order: list[str] = []
    parsing = Parsing()
    parse = request_body.parse

    def slow(body: bytes, max_list_items: int, path: str) -> dict[str, Any]:
        if len(body) > request_body.LARGE_BODY_BYTES:
            order.append(json.loads(body)["metadata"])
            assert parsing.go_on.wait(60)
        return parse(body, max_list_items, path)

    monkeypatch.setattr(request_body, "parse", slow)
    try:
        yield order, parsing
    finally:
        parsing.go_on.set()


def holds(bodies: Bodies, size: int) -> bool:
    return bodies.held_bytes == size


class Parsing:
    def __init__(self) -> None:
        self.go_on = threading.Event()


def begin(front: Front, body: bytes, key: str = KEY, **headers: str) -> asyncio.Task[int]:
    async def status() -> int:
        given = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        url = front.url + "/v1/chat/completions"
        async with front.http.post(url, data=body, headers=given) as answer:
            await answer.read()
            return int(answer.status)

    return asyncio.create_task(status())


async def test_waiting_for_a_turn_to_be_parsed_counts_against_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_before(FakeEngine()) as front:
        with parsed_one_by_one(monkeypatch) as (order, parsing):
            first = begin(front, body_of(user=LARGE, metadata="first"))
            await until(lambda: order == ["first"])
            second = begin(
                front, body_of(user=LARGE, metadata="second"), **{"x-antefix-timeout": "0.3"}
            )
            assert await asyncio.wait_for(second, 60) == 504
            parsing.go_on.set()
            assert await first == 200
        assert order == ["first"]


async def test_tenants_take_turns_at_having_large_bodies_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_before(FakeEngine()) as front:
        bodies = front.gateway.parts.bodies
        size = len(body_of(user=LARGE, metadata="x"))
        with parsed_one_by_one(monkeypatch) as (order, parsing):
            sent = []
            for count, (name, key) in enumerate(
                [("a", KEY), ("a", KEY), ("a", KEY), ("b", OTHER_KEY)], start=1
            ):
                sent.append(begin(front, body_of(user=LARGE, metadata=name), key))
                await until(partial(holds, bodies, count * size))
                await until(lambda: order)
            parsing.go_on.set()
            assert await asyncio.gather(*sent) == [200] * 4
        assert order == ["a", "b", "a", "a"]


async def test_a_large_body_for_an_unknown_model_is_refused_unparsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_before(FakeEngine()) as front:
        with parsed_one_by_one(monkeypatch) as (order, _):
            body = body_of(user=LARGE, metadata="x", model="none")
            assert await asyncio.wait_for(begin(front, body), 60) == 404
        assert not order


@contextlib.asynccontextmanager
async def stalled_upload(
    front: Front, size: int, sent: int, key: str = KEY
) -> AsyncIterator[asyncio.StreamReader]:
    """A request of which only the beginning comes."""
    url = urlsplit(front.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    )
    writer.write(head.encode() + b" " * sent)
    try:
        yield reader
    finally:
        writer.close()


async def status_on(reader: asyncio.StreamReader) -> int:
    return int((await asyncio.wait_for(reader.readline(), 60)).split()[1])


async def test_the_stalled_uploads_of_one_tenant_leave_room_for_others() -> None:
    size = 2**20
    async with gateway_before(FakeEngine(), max_bodies_bytes=4 * size) as front:
        bodies = front.gateway.parts.bodies
        async with contextlib.AsyncExitStack() as uploads:
            for count in range(1, 4):
                await uploads.enter_async_context(stalled_upload(front, size, size - 1))
                await until(partial(holds, bodies, count * (size - 1)))
            more = await uploads.enter_async_context(stalled_upload(front, size, size - 1))
            assert await status_on(more) == 503
            assert await begin(front, body_of(), OTHER_KEY) == 200
            large = body_of(user="x" * (size - 10_000))
            assert await begin(front, large, OTHER_KEY) == 200
        await until(lambda: bodies.held_bytes == 0)
