"""An engine that computes nothing.

It has the server, gate and headers of a real replica, and the real publisher puts it on the load
board. It streams one token per step, as server-sent events of vLLM's size.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from deployments.engine.serving.confirming import Confirming
from deployments.engine.serving.serve_places import ServePlaces
from deployments.engine.serving.tickets import TicketGate, Tickets
from deployments.process.http_server import HttpServer
from deployments.prompt import ChatTemplate, MessagesFacts, RendererFacts
from deployments.wire import confirmation, resumable
from deployments.wire.headers import RENDERER_PATH
from router.board.load import EnginePace, LoadReport, ReplicaCache, ReplicaLoad, ReplicaQueue
from router.index.cached_blocks import CachedBlocks
from router.index.event_stream import EventBatch
from router.index.publisher import IndexPublisher, Lease
from router.index.segment_keys import SegmentHasher, index_secret
from router.redis.lease_signature import LeaseSigner
from router.redis.redis_client import connect
from router.redis.signature import Signer

SEGMENT_TOKENS = 128
MAX_SEQUENCES = 256
MAX_MODEL_LEN = 131_072
# Prompt tokens a second, as published. A prompt takes no time.
PREFILL_RATE = 20_000.0


@dataclass(frozen=True)
class EnginesSettings:
    """`model_folder` has the tokenizer. Without max_tokens, a request gets `tokens`: the first at
    once, then one each `step_s` seconds."""

    redis_url: str = field(repr=False)
    secret: str = field(repr=False)
    pool: str
    model: str
    model_folder: Path
    prompt_tokens: int
    tokens: int
    step_s: float


class PlayedEngine:
    """`places`: of the Ray Serve replica that it is in."""

    def __init__(
        self,
        settings: EnginesSettings,
        facts: RendererFacts,
        replica_id: str,
        places: ServePlaces | None = None,
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._id = replica_id
        self._url = ""
        self._running = 0
        self._sequence = 0
        self._step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tickets = Tickets(MAX_SEQUENCES, places=places)
        gate = TicketGate(Confirming(self._app, self._report), self.tickets, settings.secret)
        self._gate, self._server = gate, HttpServer(gate)
        self._signer = LeaseSigner(Signer(settings.secret), settings.pool)
        hasher = SegmentHasher(index_secret(settings.secret))
        self._publisher = IndexPublisher(
            connect(settings.redis_url),
            settings.pool,
            CachedBlocks(hasher, settings.model, None, SEGMENT_TOKENS),
            self._snapshot,
        )

    async def start(self) -> str:
        """Start its server. Its address."""
        self._url = self._gate.url = await self._server.start("127.0.0.1")
        self._publisher.start(_no_events)
        return self._url

    async def run(self) -> None:
        """Step until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.step_s)
                done, self._step = self._step, asyncio.get_running_loop().create_future()
                done.set_result(None)
        finally:
            await self._publisher.stop()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == RENDERER_PATH:
            facts = Response(self._facts.to_json(), media_type="application/json")
            await facts(scope, receive, send)
            return
        body = bytearray()
        while (message := await receive()).get("more_body"):
            body += message.get("body", b"")
        body += message.get("body", b"")
        wanted = _MAX_TOKENS.search(body)
        self._running += 1
        try:
            await self._stream(send, int(wanted[1]) if wanted else self._settings.tokens)
        finally:
            self._running -= 1

    async def _stream(self, send: Send, tokens: int) -> None:
        exchange, asked = confirmation.current.get(), resumable.current.get()
        assert exchange is not None
        if asked is not None:
            asked.offered = True
        exchange.first_token(self._settings.prompt_tokens, exchange.expected_cached)
        await send(_STREAM)
        for number in range(tokens):
            exchange.generated(1)
            if asked is not None:
                asked.chunk(0, [100_000 + number])
            await send(_piece(_EVENT, True))
            await self._step
        await send(_piece(b"data: [DONE]\n\n", False))

    def _report(self) -> LoadReport:
        self._sequence += 1
        return LoadReport(self._sequence, ReplicaQueue(0, self._running, 0))

    def _snapshot(self, lease: Lease) -> str:
        self._sequence += 1
        load = ReplicaLoad(
            replica_id=self._id,
            slot=lease.slot,
            incarnation=lease.incarnation,
            url=self._url,
            node_ip="127.0.0.1",
            renderer=self._facts.digest,
            sequence=self._sequence,
            arrived=self.tickets.lately_arrived(),
            max_sequences=MAX_SEQUENCES,
            tells_serve=True,
            queue=ReplicaQueue(
                waiting=0,
                running=self._running,
                prefill_tokens=0,
            ),
            cache=ReplicaCache(
                use=self._running / MAX_SEQUENCES,
                capacity_tokens=1_000_000,
                segment_tokens=SEGMENT_TOKENS,
                synced=lease.synced,
            ),
            pace=EnginePace(
                prefill_rate=PREFILL_RATE,
                inter_token_latency=self._settings.step_s,
                step_s=self._settings.step_s,
            ),
        )
        return self._signer.signed(lease.slot, load.to_json())


def facts_of(folder: Path) -> RendererFacts:
    """How an engine of the model in `folder` renders prompts."""
    template = ChatTemplate((folder / "chat_template.jinja").read_text(), "string")
    return RendererFacts(
        tokenizer=(folder / "tokenizer.json").read_text(),
        split_special_tokens=False,
        special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        truncation_side="right",
        max_chars_per_token=100,
        max_model_len=MAX_MODEL_LEN,
        template=template,
        tool_template=template,
        template_kwargs={},
        exclude_tools_when_tool_choice_none=False,
        messages=MessagesFacts(merges_system_messages=False, disabled_thinking_effort="none"),
    )


async def _no_events() -> AsyncGenerator[EventBatch, None]:
    await asyncio.Event().wait()
    yield EventBatch([], lost=False)


def _piece(body: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


_STREAM: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d{1,9})')
_EVENT = (
    b'data: {"id":"chatcmpl-5f0c2b7a9d3e4f61a2b3c4d5e6f70819","object":"chat.completion.chunk",'
    b'"created":%d,"model":"small","choices":[{"index":0,"delta":{"content":" token"},'
    b'"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n' % time.time()
)
