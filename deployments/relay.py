"""One request on its way to an engine and back, as an ASGI response.

Nothing is lost on the way: the engine's bytes reach the client as they come, a client that
leaves aborts the generation, a deadline ends it, and a replica that fails before it has said
anything costs the client a retry's time, not an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from deployments.errors import ApiError, from_engine
from deployments.transport import ReplicaFailed, Slot, Transport
from router.placement import Placement

logger = logging.getLogger("ray.serve")

# One retry: a request that kills the engine it runs on must not take the whole pool along.
ATTEMPTS = 2
_PASSED_ON = {"content-type", "content-length"}


@dataclass(frozen=True)
class EngineRequest:
    """What an engine is asked: the client's own bytes, and until when (seconds, loop time)."""

    request_id: str
    path: str
    body: bytes
    model: str
    deadline: float
    timeout_s: float


@dataclass(frozen=True)
class Target:
    """Where a pool's requests go: `rank` places one, `placed` counts it on its replica."""

    transport: Transport
    rank: Callable[[frozenset[str]], Placement]
    placed: Callable[[str], None]


class Relay(Response):
    """Carries `request` to `target` and its answer back."""

    def __init__(
        self, session: aiohttp.ClientSession, target: Target, request: EngineRequest
    ) -> None:
        super().__init__()
        self._session = session
        self._target = target
        self._request = request
        self._streaming = False
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tracked(message: Message) -> None:
            self._started = True
            await send(message)

        work = asyncio.ensure_future(self._answer(tracked))
        gone = asyncio.ensure_future(_client_gone(receive))
        timeout = max(0.0, self._request.deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.wait({work, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif not gone.done():
                await _cancelled(work)
                raise self._deadline_passed()
        except ApiError as error:
            await self._fail(error, scope, receive, send)
        finally:
            await _cancelled(work)
            await _cancelled(gone)

    async def _answer(self, send: Send) -> None:
        failed: frozenset[str] = frozenset()
        failure = _broken_off()
        for _ in range(ATTEMPTS):
            placement = self._target.rank(failed)
            best = placement.ranked[0] if placement.ranked else None
            if best is not None:
                self._target.placed(best.replica_id)
            try:
                async with self._target.transport.exchange(
                    self._send, placement.replica_ids, best.url if best else None
                ) as (slot, upstream):
                    error = await self._pass_on(slot, upstream, send)
                    if error is None:
                        return
                    failure, failed = error, failed | {slot.replica_id}
            except ReplicaFailed as broken:
                failure, failed = _broken_off(), failed | {broken.replica_id}
            logger.warning("request %s failed on %s", self._request.request_id, [*failed])
            if self._started:
                break
        raise failure

    async def _send(self, slot: Slot) -> aiohttp.ClientResponse:
        request = self._request
        headers = {
            **slot.headers,
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": request.request_id,
        }
        return await self._session.post(slot.url + request.path, data=request.body, headers=headers)

    async def _pass_on(
        self, slot: Slot, upstream: aiohttp.ClientResponse, send: Send
    ) -> ApiError | None:
        """None when the answer is passed on; the error when the engine failed before it spoke."""
        try:
            if upstream.status >= 400:
                error = self._engine_error(upstream.status, await upstream.read())
                if upstream.status >= 500:
                    return error
                raise error
            content_type = upstream.headers.get("content-type", "")
            self._streaming = content_type.startswith("text/event-stream")
            await send(self._start(slot, upstream))
            async for chunk in upstream.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return None
        except aiohttp.ClientError as error:
            raise ReplicaFailed(slot.replica_id) from error

    def _start(self, slot: Slot, upstream: aiohttp.ClientResponse) -> Message:
        headers = [(k.lower(), v) for k, v in upstream.headers.items() if k.lower() in _PASSED_ON]
        headers.append(("x-request-id", self._request.request_id))
        headers.append(("x-antefix-replica", slot.replica_id))
        if self._streaming:
            headers += [("cache-control", "no-cache"), ("x-accel-buffering", "no")]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return {"type": "http.response.start", "status": upstream.status, "headers": raw}

    def _engine_error(self, status: int, body: bytes) -> ApiError:
        if status == 404:
            message = f"the model {self._request.model!r} does not support {self._request.path}"
            return ApiError(400, message, code="unsupported_endpoint", param="model")
        return from_engine(status, body, self._request.request_id)

    def _deadline_passed(self) -> ApiError:
        message = (
            f"the request was not finished within {self._request.timeout_s:g} s and was stopped;"
            " ask for fewer tokens, or for more time"
        )
        return ApiError(504, message, code="deadline_exceeded")

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            headers = {**error.headers, "x-request-id": self._request.request_id}
            response = JSONResponse(error.body(), status_code=error.status, headers=headers)
            await response(scope, receive, send)
        elif self._streaming:
            await send({"type": "http.response.body", "body": error.event(), "more_body": False})
        else:
            raise error  # a half-sent JSON body can only be cut


def _broken_off() -> ApiError:
    message = "the engine broke off; send the request again"
    return ApiError(503, message, code="engine_unavailable", retry_after=1)


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
