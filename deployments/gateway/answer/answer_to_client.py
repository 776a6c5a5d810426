"""The answer to one request as its client gets it: headers, pieces, an end or an error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from deployments.gateway.answer.rejoining import RESUME_HEADER
from deployments.gateway.answer.stream_errors import error_event
from deployments.gateway.intake.errors import ApiError, id_headers
from deployments.gateway.intake.request import EngineRequest
from deployments.process.pieces import AnswerPieces, pieces_of
from deployments.wire.headers import CONTINUED
from deployments.wire.inference_paths import inference_path

# A client that reads nothing must not hold its request's task past the deadline.
ERROR_TIMEOUT_S = 1.0
_PASSED_ON = {"content-type", "content-length"}
RESUMED_HEADER = "x-antefix-resumed"


class AnswerToClient:
    """`headers` are for the client, of an error too; `placement`: further ones, of who answers.

    `started`: a part of the answer was sent, whatever engine the rest comes from. `streaming`: its
    engine streams it. `continued`: tokens may differ from those that its first engine would have
    made, and that is not said yet.
    """

    def __init__(self, request: EngineRequest, headers: Mapping[str, str]) -> None:
        self.placement: Mapping[str, str] = {}
        self.started = self.streaming = self.continued = False
        self._request = request
        self._shape = inference_path(request.path).errors
        self._headers = headers
        self._send: Send | None = None
        self._pieces: AnswerPieces
        self._clock = asyncio.get_running_loop().time
        self._pieces_at = request.record.pieces_at

    def goes_to(self, scope: Scope, send: Send) -> None:
        self._send, self._pieces = send, pieces_of(scope)

    async def start(
        self,
        replica_id: str,
        status: int,
        engine_headers: Mapping[str, str],
        resume_id: str | None = None,
    ) -> None:
        self._request.record.status = status
        headers = [(k.lower(), v) for k, v in engine_headers.items() if k.lower() in _PASSED_ON]
        headers += id_headers(self._shape, self._request.request_id).items()
        headers.append(("x-antefix-replica", replica_id))
        headers += {**self._headers, **self.placement}.items()
        if resume_id is not None:
            headers.append((RESUME_HEADER, resume_id))
        if self.continued:
            headers.append((RESUMED_HEADER, CONTINUED))
        if self.streaming:
            headers += [("cache-control", "no-cache"), ("x-accel-buffering", "no")]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def continues(self) -> None:
        """Another engine goes on now: say where tokens may begin to differ."""
        if not self.started:
            self.continued = True
        elif self.streaming:
            comment = f": antefix-resumed {CONTINUED}\n\n".encode()
            if self.keeps_up:
                self._pieces.write(comment)
            else:
                await self._put({"type": "http.response.body", "body": comment, "more_body": True})

    @property
    def keeps_up(self) -> bool:
        """Whether `piece_now` may be called."""
        return self._pieces.take_one

    def piece_now(self, chunk: bytes) -> None:
        """As `piece`, without waiting for the client."""
        self._clocked()
        self._pieces.write(chunk)

    async def piece(self, chunk: bytes) -> None:
        """It must not be empty."""
        if self.keeps_up:
            self.piece_now(chunk)
        else:
            self._clocked()
            await self._put({"type": "http.response.body", "body": chunk, "more_body": True})

    def _clocked(self) -> None:
        if self.streaming:
            self._pieces_at.append(self._clock())

    async def end(self, rest: bytes = b"") -> None:
        await self._put({"type": "http.response.body", "body": rest, "more_body": False})

    async def fail(self, error: ApiError, scope: Scope, receive: Receive, number: int) -> None:
        """Send the error, in a stream as its event of that number. The connection of a client that
        takes nothing is cut."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ERROR_TIMEOUT_S):
                if not self.started:
                    request_id = self._request.request_id
                    own = id_headers(self._shape, request_id)
                    headers = {**self._headers, **error.headers, **own}
                    body = error.body(self._shape, request_id)
                    response = JSONResponse(body, error.status, headers)
                    await response(scope, receive, self._put)
                elif self.streaming:
                    event = error_event(self._shape, error, number, self._request.request_id)
                    await self.end(event)
                # a half-sent JSON body can only be cut, which the server does

    async def _put(self, message: Message) -> None:
        assert self._send is not None, "goes_to was called"
        self.started = True
        await self._send(message)
