"""The answer to one request, as ASGI messages to its client: headers, pieces, an end or an error.

After the headers, an error can only become an event of a stream. Other answers are cut.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from deployments.gateway.answer.stream_errors import error_event
from deployments.gateway.api.response_headers import (
    ACCEL_BUFFERING,
    CACHE_CONTROL,
    REPLICA_HEADER,
    RESUMED_HEADER,
)
from deployments.gateway.intake.api_errors import ApiError, id_headers
from deployments.gateway.intake.request import EngineRequest
from deployments.process.pieces import AnswerPieces, pieces_of
from deployments.wire.headers import CONTINUED
from deployments.wire.inference_paths import inference_path

# A client that stops reading must not keep its request's task alive after the deadline.
ERROR_TIMEOUT_S = 1.0
_PASSED_ON = {"content-type", "content-length"}


class AnswerToClient:
    """Sends one answer. Answers and errors have `headers`; answers also have `placement`, the
    headers about the engine.

    `status`: the answer's; None: none was sent. `started`: a part of the answer, or an error, was
    sent. `streaming`: the engine streams it. `continued`: tokens may differ from those of the first
    engine, and the headers must report it.
    """

    def __init__(self, request: EngineRequest, headers: Mapping[str, str]) -> None:
        self.placement: Mapping[str, str] = {}
        self.status: int | None = None
        self.started = self.streaming = self.continued = False
        self._request = request
        self._shape = inference_path(request.path).errors
        self._headers = headers
        self._send: Send | None = None
        self._pieces: AnswerPieces
        self._clock = asyncio.get_running_loop().time

    def attach(self, scope: Scope, send: Send) -> None:
        self._send, self._pieces = send, pieces_of(scope)

    async def start(self, replica_id: str, status: int, engine_headers: Mapping[str, str]) -> None:
        self.status = status
        headers = [(k.lower(), v) for k, v in engine_headers.items() if k.lower() in _PASSED_ON]
        headers += id_headers(self._shape, self._request.request_id).items()
        headers.append((REPLICA_HEADER, replica_id))
        headers += {**self._headers, **self.placement}.items()
        if self.continued:
            headers.append((RESUMED_HEADER, CONTINUED))
        if self.streaming:
            headers += [(CACHE_CONTROL, "no-cache"), (ACCEL_BUFFERING, "no")]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def resumes(self) -> None:
        """Report to the client that another engine resumes, and tokens may differ from here."""
        if not self.started:
            self.continued = True
        elif self.streaming:
            await self._write(f": antefix-resumed {CONTINUED}\n\n".encode())

    @property
    def keeps_up(self) -> bool:
        """Return whether `piece_now` may be called: headers are sent, and the client keeps up."""
        return self._pieces.take_one

    def piece_now(self, chunk: bytes) -> None:
        """Send a piece without waiting for the client. It must not be empty."""
        self._record_time()
        self._pieces.write(chunk)

    async def piece(self, chunk: bytes) -> None:
        """Send a piece, which must not be empty."""
        self._record_time()
        await self._write(chunk)

    async def _write(self, chunk: bytes) -> None:
        if self.keeps_up:
            self._pieces.write(chunk)
        else:
            await self._put({"type": "http.response.body", "body": chunk, "more_body": True})

    def _record_time(self) -> None:
        if self.streaming:
            self._request.record.piece(self._clock())

    async def end(self, rest: bytes = b"") -> None:
        await self._put({"type": "http.response.body", "body": rest, "more_body": False})

    async def fail(self, error: ApiError, scope: Scope, receive: Receive, number: int) -> None:
        """Send the error, in a stream as event `number`. Cut clients that stop reading."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ERROR_TIMEOUT_S):
                if not self.started:
                    request_id = self._request.request_id
                    ids = id_headers(self._shape, request_id)
                    headers = {**self._headers, **error.headers, **ids}
                    body = error.body(self._shape, request_id)
                    response = JSONResponse(body, error.status, headers)
                    await response(scope, receive, self._put)
                elif self.streaming:
                    event = error_event(self._shape, error, number, self._request.request_id)
                    await self.end(event)
                # the server cuts a half-sent JSON body, which cannot report an error

    async def _put(self, message: Message) -> None:
        assert self._send is not None, "attach was called"
        self.started = True
        await self._send(message)
