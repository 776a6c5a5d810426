"""An engine for tests: vLLM's API as far as a gateway can see it, with faults on demand.

It stands behind the real `TicketGate` and `HttpServer`. `tests/contract.py` holds it to what
the real engine does.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.engine.adapters.loaded_adapters import AdapterLoading, EngineAdapters, WithAdapters
from deployments.engine.serving.confirming import Confirming
from deployments.engine.serving.profiling import Profiling
from deployments.engine.serving.serve_places import ServePlaces
from deployments.engine.serving.sleep_mode import Awake, Sleeper
from deployments.engine.serving.tickets import TicketGate, Tickets
from deployments.process.http_server import HttpServer
from deployments.prompt import RendererFacts
from deployments.wire import confirmation, resumable
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import PROFILE_PATH, RENDERER_PATH
from deployments.wire.lora_adapter import ADAPTER_PATH
from deployments.wire.resumable import Known, ResumableExchange
from router.board.load import (
    EnginePace,
    LoadReport,
    ReplicaAdapters,
    ReplicaCache,
    ReplicaLoad,
    ReplicaQueue,
)
from tests.fakes import completions
from tests.fakes.anthropic_events import message, message_events
from tests.fakes.completions import Said
from tests.fakes.faults import Faults, GenerationFailed
from tests.fakes.loras import FakeLoras
from tests.fakes.profiler import FakeProfiler

SECRET = "engine-secret"
MODEL = "small"
# The id of an answer's first token; the second has the next, and so on.
FIRST_TOKEN_ID = 1000
TWIN_TIMEOUT_S = 1.0


class FakeEngine(Faults):
    """One replica. Set the fields to make it slow or faulty; read them to see what it did."""

    def __init__(
        self,
        replica_id: str = "r0",
        limit: int = 4,
        clock: Callable[[], float] = time.monotonic,
        model: str = MODEL,
        places: ServePlaces | None = None,
        adapter_sources: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.replica_id = replica_id
        self.model = model
        self.slot = int(replica_id[1:]) if replica_id[1:].isdigit() else 0
        self.limit = limit
        self.url = ""
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self.exchanges: list[confirmation.Confirmation] = []  # of running requests
        self.made = 0  # tokens
        self.finished = 0
        self.aborted = 0
        self.cached_tokens = 0
        self.created = 1_700_000_000 + self.slot
        # answers that another engine can resume
        self.offers_resumable = True
        self.refuses_to_resume = False
        self.resumes_exactly = True
        self.resumed_with: list[Known] = []
        # makes of a request how many tokens its prompt has, and how many of them are cached
        self.prompt_cache: Callable[[dict[str, Any]], tuple[int, int]] | None = None
        # how it sleeps, while `sleeper` runs
        self.takes_traffic: bool | None = True
        self.sleeps = False
        self.wake_delay_s = 0.0
        self.wake_failures = 0  # before it wakes
        # what it reports to gateways
        self.tells_serve = True
        self.leaving = self.closed = self.suspect = False
        self.started_at = 0.0
        self.startup_s = 0.0
        self.segment_tokens = 0
        self.host_load_rate = self.disk_load_rate = self.peer_load_rate = 0.0  # no such tier
        self.peer = ""
        self.renderer: RendererFacts | None = None
        self.renderer_asked = self.cards_told = 0
        self.renderer_answers: Response | None = None
        self._sequence = 0
        self.profiler = FakeProfiler()
        self.profiling = Profiling(self.profiler)
        self.tickets = Tickets(limit, TWIN_TIMEOUT_S, places)
        self.sleeper = Sleeper(self, lambda: self.takes_traffic, clock)
        self.loras = FakeLoras()
        self._copies = tempfile.TemporaryDirectory()
        self.fails_adapter = ""  # the name
        self.adapters = EngineAdapters(self.loras, adapter_sources, Path(self._copies.name))
        app = Confirming(Awake(WithAdapters(self._app(), self.adapters), self.sleeper), self.report)
        self._gate = TicketGate(_Cut(app, self), self.tickets, SECRET)
        self.server = HttpServer(self._gate)

    async def start(self) -> None:
        self.url = self._gate.url = await self.server.start("127.0.0.1")

    async def stop(self) -> None:
        self.go_on.set()
        self.break_off()
        await self.server.drain()

    def break_off(self) -> None:
        """Cut every connection, as the death of the process does."""
        for connection in list(self.server.state.connections):
            connection.transport.abort()

    def load(self, queued_prefill_tokens: int = 0) -> ReplicaLoad:
        return ReplicaLoad(
            replica_id=self.replica_id,
            slot=self.slot,
            incarnation=f"incarnation of {self.replica_id}",
            url=self.url,
            node_ip="127.0.0.1",
            renderer=self.renderer.digest if self.renderer else "",
            started_at=self.started_at,
            startup_s=self.startup_s,
            asleep=self.sleeper.asleep,
            leaving=self.leaving,
            closed=self.closed,
            suspect=self.suspect,
            tells_serve=self.tells_serve,
            peer=self.peer,
            queue=ReplicaQueue(
                waiting=0,
                running=0,
                prefill_tokens=queued_prefill_tokens,
            ),
            cache=ReplicaCache(
                use=0.0,
                capacity_tokens=0,
                segment_tokens=self.segment_tokens,
            ),
            pace=EnginePace(
                prefill_rate=1000.0,
                inter_token_latency=0.0,
                host_load_rate=self.host_load_rate,
                disk_load_rate=self.disk_load_rate,
                peer_load_rate=self.peer_load_rate,
            ),
            adapters=ReplicaAdapters(
                resident=self.adapters.resident,
                slots=self.adapters.slots,
                busy=self.adapters.busy,
                load_s=self.adapters.load_s,
            ),
        )

    def report(self) -> LoadReport:
        """How busy it is now."""
        self._sequence += 1
        loads = [of.tier_tokens for of in self.exchanges if of.first_token_at is None]
        queued = (sum(tokens) for tokens in zip((0, 0, 0), *loads, strict=True))
        queue = ReplicaQueue(self.sleeper.waiting, self.running, 0, *queued)
        return LoadReport(self._sequence, queue)

    async def sleep(self) -> None:
        assert not self.running, "what runs would be aborted"
        self.sleeps = True

    async def wake_up(self) -> None:
        await asyncio.sleep(self.wake_delay_s)
        if self.wake_failures:
            self.wake_failures -= 1
            raise MemoryError("taken by another")
        self.sleeps = False

    @property
    def access(self) -> dict[str, str]:
        """Headers that let a request in."""
        return EnginePasses(SECRET).headers(self.url)

    def more_routes(self) -> list[Route]:
        """Those of an engine that does more."""
        return []

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                *self.more_routes(),
                Route("/v1/chat/completions", self._completions, methods=["POST"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/responses", self._completions, methods=["POST"]),
                Route("/v1/messages", self._completions, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._completions, methods=["POST"]),
                Route("/v2/rerank", self._completions, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/openapi.json", self._openapi),
                Route("/metrics", self._metrics),
                Route(RENDERER_PATH, self._renderer),
                Route(PROFILE_PATH, self.profiling.answer, methods=["POST"]),
                Route(ADAPTER_PATH, AdapterLoading(self.adapters), methods=["POST"]),
            ]
        )

    async def _completions(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        self.headers.append(dict(request.headers))
        if self.dies_after == 0:
            self.break_off()
        if (exchange := resumable.current.get()) is not None:
            exchange.prompts += 1
        if self.answers is not None:
            return self.answers
        is_message = request.url.path == "/v1/messages"
        chat = is_message or request.url.path.endswith("/chat/completions")
        fields = json.loads(self.bodies[-1])
        if self.dies_of and self.dies_of in fields:
            self.break_off()
        model = fields.get("model")
        model = model if model in self.loras.known else self.model
        if self.fails_adapter and model.startswith(f"{self.fails_adapter}@"):
            return JSONResponse({"error": {"message": "It fails.", "code": 500}}, 500)
        if refused := completions.refused(fields, chat, model):
            return refused
        said = Said("chatcmpl-" + request.headers.get("x-request-id", "1"), self.created)
        said.tells_ids = bool(fields.get("return_token_ids"))
        if exchange is not None and self.offers_resumable:
            self._may_resume(exchange, said, not fields.get("stream"))
        if fields.get("stream"):
            events = self._events(fields, chat, said)
            if is_message:
                events = message_events(events)
            return StreamingResponse(events, media_type="text/event-stream")
        generation = asyncio.ensure_future(self._all_tokens(fields, said))
        while not generation.done():
            await asyncio.wait({generation}, timeout=0.05)
            if await request.is_disconnected():
                generation.cancel()
        if generation.cancelled():
            return Response()  # the client has left
        if generation.exception() is not None:
            return completions.error(self.fails_with, completions.DEAD_END, None)
        known = map(completions.token, range(1, said.known_tokens + 1))
        text = "".join([*known, *generation.result()])
        choice = {"index": 0, "finish_reason": self.finish_reason}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = completions.usage(fields, completions.max_tokens(fields))
        answer = self._answer(said, [choice], usage=usage)
        return JSONResponse(message(answer) if is_message else answer)

    def _may_resume(self, exchange: ResumableExchange, said: Said, in_one_piece: bool) -> None:
        """Raises NotResumable."""
        exchange.offered, exchange.in_one_piece = True, in_one_piece
        exchange.exact = self.resumes_exactly
        said.exchange = exchange
        if (known := exchange.known) is not None:
            if self.refuses_to_resume:
                raise exchange.refuse("The engine cannot resume this answer.")
            self.resumed_with.append(known)
            said.known_tokens, said.created = exchange.known_tokens, known.created or said.created

    async def _all_tokens(self, fields: dict[str, Any], said: Said) -> list[str]:
        return [token async for token in self._tokens(fields, said)]

    async def _tokens(self, fields: dict[str, Any], said: Said) -> AsyncIterator[str]:
        count = completions.max_tokens(fields)
        assert not self.sleeps, "it cannot compute"
        self.running += 1
        exchange = confirmation.current.get()
        if exchange is not None:
            self.exchanges.append(exchange)
        try:
            if self.pauses_after == 0:
                await self.go_on.wait()
            for sent in range(said.known_tokens + 1, count + 1):
                if sent - 1 == self.fails_after:
                    raise GenerationFailed
                await asyncio.sleep(self.token_delay_s)
                self.made += 1
                if exchange and sent == said.known_tokens + 1:
                    exchange.first_token(*self._counts(fields))
                if exchange:
                    exchange.generated(1)
                    exchange.finish_reason = self.finish_reason if sent == count else ""
                said.tells(FIRST_TOKEN_ID + sent - 1)
                yield completions.token(sent)
                if sent == self.pauses_after:
                    await self.go_on.wait()
                if sent == self.dies_after:
                    await asyncio.sleep(0.01)  # what was sent is on its way
                    self.break_off()
            self.finished += 1
        except (asyncio.CancelledError, GeneratorExit, GenerationFailed):
            self.aborted += 1
            if exchange and exchange.first_token_at is None:
                exchange.unanswered(self._counts(fields)[0])
            raise
        finally:
            self.running -= 1
            if exchange is not None:
                self.exchanges.remove(exchange)

    def _counts(self, fields: dict[str, Any]) -> tuple[int, int]:
        if self.prompt_cache is not None:
            return self.prompt_cache(fields)
        return len(completions.prompt(fields).split()), self.cached_tokens

    async def _events(self, fields: dict[str, Any], chat: bool, said: Said) -> AsyncIterator[bytes]:
        count = completions.max_tokens(fields)
        made = 0
        tokens = self._tokens(fields, said)
        try:
            for made in range(1, said.known_tokens + 1):
                for event in self._events_of(made, count, chat, said):
                    yield event
            every = int(fields.get("stream_interval", 1))
            async for _ in tokens:
                made += 1
                if made % every and made not in (1, count):
                    continue
                for event in self._events_of(made, count, chat, said):
                    yield event
                if made == self.tells_death_after:
                    said.is_lost()
                    yield completions.DEATH + b"data: [DONE]\n\n"
                    return
        except GenerationFailed:
            yield completions.error_event(self.fails_with)
            yield b"data: [DONE]\n\n"
            return
        finally:
            await tokens.aclose()  # type: ignore[attr-defined]
        if (fields.get("stream_options") or {}).get("include_usage"):
            yield self._event(said, [], usage=completions.usage(fields, made))
        yield b"data: [DONE]\n\n"

    def _events_of(self, made: int, count: int, chat: bool, said: Said) -> list[bytes]:
        """Of one token, that is the last that was made."""
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        reason, token = self.finish_reason if made == count else None, completions.token(made)
        text: dict[str, Any] = {"delta": {"content": token}} if chat else {"text": token}
        if said.tells_ids:
            text["token_ids"] = [FIRST_TOKEN_ID + made - 1]
        events = [self._event(said, [first])] if chat and made == 1 else []
        return [*events, self._event(said, [{"index": 0, "finish_reason": reason, **text}])]

    def _event(self, said: Said, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + json.dumps(self._answer(said, choices, **more)).encode() + b"\n\n"

    def _answer(self, said: Said, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        about = {"id": said.id, "created": said.created, "model": self.model}
        return {**about, "choices": choices, **more}

    async def _models(self, request: Request) -> Response:
        self.cards_told += 1
        card: dict[str, Any] = {
            "id": self.model,
            "object": "model",
            "created": 1_700_000_000 + self.cards_told,  # vLLM's is the time of the question
            "root": "/where/it/lies",
            "permission": [],
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _openapi(self, request: Request) -> Response:
        paths: dict[str, Any] = {"/v1/chat/completions": {"post": {}}, "/internal": {"post": {}}}
        return JSONResponse({"info": {"title": "engine", "version": "1"}, "paths": paths})

    async def _renderer(self, request: Request) -> Response:
        self.renderer_asked += 1
        if self.renderer_answers is not None:
            return self.renderer_answers
        assert self.renderer is not None, "no gateway asks an engine without facts"
        return Response(self.renderer.to_json(), media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(
            f'vllm:num_requests_running{{model_name="{MODEL}"}} {self.running}.0\n'
        )


class _Cut:
    """ASGI: cuts the connections of `engine` in the middle of an answer, where it says so."""

    def __init__(self, app: ASGIApp, engine: FakeEngine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cuts = self._engine.cuts if scope["method"] == "POST" else []
        left = cuts.pop(0) if cuts else None
        is_cut = False

        async def sent(message: Message) -> None:
            nonlocal left, is_cut
            body = message.get("body", b"")
            if left is not None and len(body) > left and not is_cut:
                is_cut = True
                await send({**message, "body": body[:left], "more_body": True})
                await asyncio.sleep(0.01)  # what was sent is on its way
                self._engine.break_off()
            left = None if left is None else left - len(body)
            if not is_cut:  # otherwise it goes on until it notices
                await send(message)

        await self._app(scope, receive, sent)
