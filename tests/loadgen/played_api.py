"""An OpenAI API with given answers: real HTTP, and a clock that it sets itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from loadgen.player import Clock
from tests.waiting import until

DONE = b"data: [DONE]\n\n"


class PlayedClock(Clock):
    """Stands still until a test sets it; a sleeper gets its time at once, and `late_s` more.
    `reads`: how often it was read."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.time_s = 0.0
        self.reads = 0
        self._late_s = late_s

    def now(self) -> float:
        self.reads += 1
        return self.time_s

    async def until(self, at: float) -> None:
        self.time_s = max(self.time_s, at + self._late_s)
        await asyncio.sleep(0)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields}])


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached}
    return event(choices=[], usage=told)


class PlayedApi:
    """`script`: what each answer writes, and when by the clock; the time of nothing is that of
    the answer's end, unless it `never_ends`. `refusal`: status, body and headers of every answer
    instead. `asked` are the bodies that came."""

    def __init__(self, clock: PlayedClock, script: Sequence[tuple[float, bytes]]) -> None:
        self._clock = clock
        self.script = script
        self.headers = {"x-antefix-replica": "r1", "date": "no matter"}
        self.never_ends = False
        self.refusal: tuple[int, dict[str, Any], dict[str, str]] | None = None
        self.asked: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if self.refusal is not None:
            status, body, headers = self.refusal
            return web.json_response(body, status=status, headers=headers)
        stream = web.StreamResponse(headers=self.headers)
        await stream.prepare(request)
        for at, written in self.script:
            self._clock.time_s = at
            if written:
                before = self._clock.reads
                await stream.write(written)
                await until(lambda: self._clock.reads > before)  # noqa: B023
        if self.never_ends:
            await asyncio.Event().wait()
        return stream

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its address."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.shutdown()
            await runner.cleanup()
