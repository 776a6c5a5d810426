"""An engine for tests that transcribes: what vLLM's server does with a form, as far as a gateway
sees it. `checks.py` has what both do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deployments.wire.inference_paths import TRANSCRIPTIONS, TRANSLATIONS
from tests.fakes.completions import DEFAULT_MAX_TOKENS, Said, error
from tests.fakes.engine import FakeEngine


class FakeTranscriber(FakeEngine):
    """Its transcripts have DEFAULT_MAX_TOKENS tokens. `forms`: the fields that it got, and for
    `file` its bytes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.forms: list[dict[str, Any]] = []

    def more_routes(self) -> list[Route]:
        paths = TRANSCRIPTIONS, TRANSLATIONS
        return [Route(path, self._transcribe, methods=["POST"]) for path in paths]

    async def _transcribe(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        self.headers.append(dict(request.headers))
        if self.dies_after == 0:
            self.break_off()
        async with request.form() as form:
            asked = {
                name: await value.read() if isinstance(value, UploadFile) else value
                for name, value in form.items()
            }
        self.forms.append(asked)
        if self.answers is not None:
            return self.answers
        if asked.get("model") != self.model:
            return error(404, f"The model {asked.get('model')!r} does not exist.", "model")
        if not asked["file"]:
            return error(400, "Invalid or unsupported audio file.", None)
        tokens = self._tokens(_ASKED, Said("trsc-1", self.created))
        if asked.get("stream") == "true":
            return StreamingResponse(_events(tokens), media_type="text/event-stream")
        speaking = asyncio.ensure_future(_text(tokens))
        while not speaking.done():
            await asyncio.wait({speaking}, timeout=0.05)
            if await request.is_disconnected():
                speaking.cancel()
        if speaking.cancelled():
            return Response()  # the client has left
        usage = {"type": "duration", "seconds": 1}
        return JSONResponse({"text": speaking.result(), "usage": usage})


_ASKED = {"prompt": "<|startoftranscript|>", "max_tokens": DEFAULT_MAX_TOKENS}


async def _text(tokens: AsyncIterator[str]) -> str:
    return "".join([token async for token in tokens])


async def _events(tokens: AsyncIterator[str]) -> AsyncIterator[bytes]:
    async for token in tokens:
        choice = {"delta": {"content": token}}
        event = {"id": "trsc-1", "object": "transcription.chunk", "choices": [choice]}
        yield b"data: " + json.dumps(event).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
