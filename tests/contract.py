"""What any engine must do, the fake one and the real one: both are called with these checks.

Each check takes a `Server`: an engine's own HTTP server, or a gateway before it, unless its
name says engine.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    ENGINE_TTFT_HEADER,
    LOAD_HEADER,
    PROMPT_TOKENS_HEADER,
)
from router.board.load import LoadReport

ABORT_WITHIN_S = 10.0


@dataclass(frozen=True)
class Server:
    http: aiohttp.ClientSession
    base_url: str
    model: str
    headers: dict[str, str] = field(default_factory=dict)

    def chat(self, **fields: Any) -> Any:
        """A request for a greedy answer of four tokens, unless `fields` say otherwise."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Say something."}],
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            **fields,
        }
        url = self.base_url + "/v1/chat/completions"
        return self.http.post(url, json=body, headers=self.headers)


async def events_of(answer: aiohttp.ClientResponse) -> list[str]:
    """The data of each event of a stream."""
    text = (await answer.read()).decode()
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


async def a_stream_starts_with_the_role(server: Server) -> None:
    async with server.chat(stream=True) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        first = json.loads((await events_of(answer))[0])
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert not first["choices"][0]["delta"].get("content")


async def a_stream_ends_with_done(server: Server) -> None:
    async with server.chat(stream=True) as answer:
        assert (await events_of(answer))[-1] == "[DONE]"


async def the_last_event_of_a_stream_has_the_finish_reason(server: Server) -> None:
    async with server.chat(stream=True) as answer:
        events = [json.loads(event) for event in (await events_of(answer))[:-1]]
    reasons = [event["choices"][0].get("finish_reason") for event in events]
    assert reasons[-1] == "length"
    assert not any(reasons[:-1])


async def a_stream_reports_its_usage_on_request(server: Server) -> None:
    async with server.chat(stream=True, stream_options={"include_usage": True}) as answer:
        events = await events_of(answer)
    last = json.loads(events[-2])
    assert last["choices"] == []
    _assert_usage(last["usage"])


async def an_answer_reports_its_usage(server: Server) -> None:
    async with server.chat() as answer:
        assert answer.status == 200
        body = await answer.json()
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["choices"][0]["finish_reason"] == "length"
    _assert_usage(body["usage"])


async def a_stream_equals_the_whole_answer(server: Server) -> None:
    async with server.chat() as answer:
        whole = (await answer.json())["choices"][0]["message"]["content"]
    async with server.chat(stream=True) as answer:
        events = [json.loads(event) for event in (await events_of(answer))[:-1]]
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == whole


async def bad_max_tokens_are_a_400_that_names_them(server: Server) -> None:
    async with server.chat(max_tokens=-1) as answer:
        assert answer.status == 400
        error = (await answer.json())["error"]
    assert "max_tokens" in error["message"]
    assert {"message", "type", "param", "code"} <= error.keys()


async def missing_messages_are_a_400_that_names_them(server: Server) -> None:
    url, body = server.base_url + "/v1/chat/completions", {"model": server.model}
    async with server.http.post(url, json=body, headers=server.headers) as answer:
        assert answer.status == 400
        assert "messages" in (await answer.json())["error"]["message"]


async def an_unknown_model_is_a_404(server: Server) -> None:
    async with server.chat(model="no-such-model") as answer:
        assert answer.status == 404
        assert "no-such-model" in (await answer.json())["error"]["message"]


async def an_unknown_address_is_a_404(server: Server) -> None:
    async with server.http.get(server.base_url + "/no/such", headers=server.headers) as answer:
        assert answer.status == 404


async def the_model_is_listed(server: Server) -> None:
    async with server.http.get(server.base_url + "/v1/models", headers=server.headers) as answer:
        assert answer.status == 200
        cards = (await answer.json())["data"]
    assert server.model in [card["id"] for card in cards]


async def an_engine_aborts_when_its_client_leaves(server: Server) -> None:
    """An engine's own server only: a gateway has no such metric."""
    async with server.chat(stream=True, max_tokens=400) as answer:
        await answer.content.readuntil(b"\n\n")
        assert await _running(server) == 1
        answer.close()
    async with asyncio.timeout(ABORT_WITHIN_S):
        while await _running(server):  # noqa: ASYNC110  # each look is a request
            await asyncio.sleep(0.05)


async def an_engine_confirms_what_it_found_cached(server: Server) -> None:
    """An engine's own server only, streaming or not: the headers that a gateway learns from."""
    for stream in (True, False):
        async with server.chat(stream=stream) as answer:
            await answer.read()
        prompt_tokens = int(answer.headers[PROMPT_TOKENS_HEADER])
        assert 0 <= int(answer.headers[CACHED_TOKENS_HEADER]) < prompt_tokens
        assert float(answer.headers[ENGINE_TTFT_HEADER]) > 0
        report = LoadReport.from_header(answer.headers[LOAD_HEADER])
        assert (report.queue.waiting, report.queue.prefill_tokens) == (0, 0)


async def an_engine_reports_the_first_token_time_of_a_whole_answer(server: Server) -> None:
    """An engine's own server only: such an answer comes long after its first token. A busy core may
    delay some first tokens that much, but not all."""
    shares: list[float] = []
    while not shares or min(shares) >= 0.5:
        assert len(shares) < 20, shares
        began = time.monotonic()
        async with server.chat(max_tokens=32, ignore_eos=True) as answer:
            await answer.read()
        shares.append(float(answer.headers[ENGINE_TTFT_HEADER]) / (time.monotonic() - began))


CHECKS: list[Callable[[Server], Awaitable[None]]] = [
    a_stream_starts_with_the_role,
    a_stream_ends_with_done,
    the_last_event_of_a_stream_has_the_finish_reason,
    a_stream_reports_its_usage_on_request,
    an_answer_reports_its_usage,
    a_stream_equals_the_whole_answer,
    bad_max_tokens_are_a_400_that_names_them,
    missing_messages_are_a_400_that_names_them,
    an_unknown_model_is_a_404,
    an_unknown_address_is_a_404,
    the_model_is_listed,
]
ENGINE_CHECKS = [
    *CHECKS,
    an_engine_aborts_when_its_client_leaves,
    an_engine_confirms_what_it_found_cached,
    an_engine_reports_the_first_token_time_of_a_whole_answer,
]


def _assert_usage(usage: dict[str, Any]) -> None:
    assert usage["completion_tokens"] == 4
    assert usage["prompt_tokens"] >= 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def _running(server: Server) -> int:
    async with server.chat(max_tokens=1) as answer:  # vLLM's gauges are of its last step
        assert answer.status == 200
    async with server.http.get(server.base_url + "/metrics", headers=server.headers) as answer:
        text = await answer.text()
    found = re.search(r"^vllm:num_requests_running\{.*\} ([\d.]+)$", text, re.MULTILINE)
    assert found, "the engine has no gauge of running requests"
    return int(float(found.group(1)))
