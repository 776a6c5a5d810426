"""What requests hold of a gateway's memory and time is bounded over all of them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from deployments.gateway import request_body
from deployments.gateway.bodies import Bodies
from deployments.gateway.long_prompts import LONG_PROMPTS
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before
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
        bodies = front.gateway._bodies
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
        assert front.gateway._bodies.held_bytes == 0


async def test_streams_go_on_while_a_large_body_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, go_on = threading.Event(), threading.Event()
    parse = request_body.parse

    def slow(body: bytes, max_list_items: int) -> dict[str, Any]:
        if len(body) > request_body.LARGE_BODY_BYTES:
            parsing.set()
            assert go_on.wait(30)
        return parse(body, max_list_items)

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
