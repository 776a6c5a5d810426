"""A real HTTP server that answers as a gateway does, with whatever a test put in it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

KEY = "sk-test"


class FakeGateway:
    def __init__(self) -> None:
        self.port = 0
        self.states = {"RUNNING": 1}
        self.index = {
            "answers": True,
            "prompts_known": True,
            "lookup_p50_ms": 0.21,
            "ttft_prediction_error": 0.125,
        }
        self.admission: dict[str, Any] = {
            "slo": {"interactive": {"ttft_s": 5.0, "tpot_s": None}},
            "queued": 0,
            "queued_by_tenant": {},
            "oldest_queued_s": 0.0,
            "held": 0,
            "overflowing": False,
            "overflow_share": 0.0,
        }
        self.speculation: dict[str, Any] | None = None
        self.redis_is_away = False
        # of the replica, in place of what is shown here
        self.told: dict[str, Any] = {}
        self.target = 1
        self.answers = ["Par", "is", "."]
        self.ending = "stop"
        # every key, a field, and what follows after N answers
        self.key_refused = False
        self.has_models = True
        self.refuses: str | None = None
        self.adapter_error = (503, "The pool a has no replica. Try again in 5 s.")
        self.most_answers: int | None = None
        self.asked: list[dict[str, Any]] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def status(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        replica = {
            "replica": "abc",
            "role": "active",
            "node_ip": "10.0.0.1",
            "waiting": 3,
            "running": 2,
            "queued_prefill_tokens": 7,
            "kv_use": 0.25,
            "predicted_ttft_s": 1.5,
            "dtype": "bfloat16",
            "speculation": self.speculation,
        }
        if self.redis_is_away:
            told_by_serve = {"replica": "abc", "role": "unknown", "node_ip": "10.0.0.1"}
            replica = dict.fromkeys(replica) | told_by_serve
        replica |= self.told
        pool = {
            "model": "small",
            "target_replicas": self.target,
            "states": self.states,
            "policy": "prefix",
            "index": self.index,
            "admission": self.admission,
            "replicas": [replica] if "RUNNING" in self.states else [],
        }
        return web.json_response(
            {
                "fleet": "test",
                "reference_prompt_tokens": 512,
                "gateways": {"RUNNING": 1},
                "pools": {"engine": pool},
            }
        )

    async def ready(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def models(self, request: web.Request) -> web.Response:
        if self.key_refused:
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        card = {"id": "small", "object": "model", "created": 0, "owned_by": "antefix"}
        cards = [card] if self.has_models else []
        return web.json_response({"object": "list", "data": cards})

    async def load_adapter(self, request: web.Request) -> web.Response:
        status, message = self.adapter_error
        return web.json_response({"error": {"message": message}}, status=status)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if self.asked[-1]["model"] != "small":
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        if self.refuses in self.asked[-1]:
            said = {"message": f"unknown field {self.refuses}"}
            return web.json_response({"error": said}, status=400)
        if self.most_answers is not None and len(self.asked) > self.most_answers:
            return web.json_response({"error": {"message": "full"}}, status=503)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        endings = [None] * (len(self.answers) - 1) + [self.ending]
        for piece, ending in zip(self.answers, endings, strict=True):
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": ending}
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "small"}
            data = json.dumps({**chunk, "choices": [choice]})
            await response.write(f"data: {data}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@contextmanager
def running() -> Iterator[FakeGateway]:
    gateway = FakeGateway()
    app = web.Application()
    app.router.add_get("/antefix/status", gateway.status)
    app.router.add_get("/health/ready", gateway.ready)
    app.router.add_get("/v1/models", gateway.models)
    app.router.add_post("/v1/load_lora_adapter", gateway.load_adapter)
    app.router.add_post("/v1/chat/completions", gateway.chat)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        gateway.port = runner.addresses[0][1]
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield gateway
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
