"""One request on its way to an engine and back, as an ASGI response.

Nothing is lost on the way: the engine's bytes reach the client as they come, a client that
leaves aborts the generation, a deadline ends it, and a replica that fails before it has said
anything costs the client a retry's time, not an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import aiohttp
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from deployments.gateway.errors import ApiError, from_engine
from deployments.gateway.request_watch import RequestWatch
from deployments.gateway.transport import ReplicaFailed, Route, Slot, Transport
from deployments.wire.confirmation import count_in, without_output_tokens
from deployments.wire.headers import (
    ENGINE_TTFT_HEADER,
    EXPECTED_CACHED_HEADER,
    OUTPUT_TOKENS_COMMENT,
    OUTPUT_TOKENS_HEADER,
)
from observability.request_record import Fact, Leg, RequestRecord

logger = logging.getLogger("ray.serve")

# One retry: a request that kills the engine it runs on must not take the whole pool along.
ATTEMPTS = 2
_PASSED_ON = {"content-type", "content-length"}


@dataclass(frozen=True)
class EngineRequest:
    """What an engine is asked: the client's own bytes; since and until when (s, loop time).

    Whoever learns something of it writes that to its `record`.
    """

    request_id: str
    tenant: str
    path: str
    body: bytes
    model: str
    arrived: float
    deadline: float
    timeout_s: float
    record: RequestRecord


class Attempt(Protocol):
    """One try at a request: where it should go, and what is learned from how it went.

    `request` is what that engine is asked: another model's, where the request overflowed.
    """

    request: EngineRequest
    transport: Transport
    route: Route
    expected_cached: int

    def answered(
        self, slot: Slot, engine_headers: Mapping[str, str], ttft: float
    ) -> Mapping[str, str]:
        """The first token came `ttft` seconds after the request; headers for the client."""

    def facts(self) -> Mapping[str, Fact | None]:
        """Where it is placed and why, for its trace."""

    def again(self, failed: frozenset[str]) -> Attempt:
        """The next try, avoiding replicas that failed it."""

    def ended(self) -> None:
        """The try is over, however it went."""


class Relay(Response):
    """Carries `request` to where `admit` lets it, and its answer back.

    `admit` may take its time, and raises ApiError for a request that is not let in.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        admit: Callable[[], Awaitable[Attempt]],
        request: EngineRequest,
        watch: RequestWatch,
    ) -> None:
        super().__init__()
        self._watch = watch
        self._session = session
        self._admit = admit
        self._request = request
        self._streaming = False
        self._started = False
        self._sent = 0.0

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
            self._request.record.failed(error.status, error.code)
            await self._fail(error, scope, receive, send)
        except Exception:
            self._request.record.failed(500, "gateway_error")
            raise
        finally:
            await _cancelled(work)
            await _cancelled(gone)
            self._watch.ended(self._request.record)

    async def _answer(self, send: Send) -> None:
        failed: frozenset[str] = frozenset()
        failure = _broken_off()
        record = self._request.record
        attempt = await self._admit()
        record.trace.placed(attempt.facts)
        for _ in range(ATTEMPTS):
            if failed:
                attempt = attempt.again(failed)
            with record.trace.attempt(record) as leg:
                try:
                    async with attempt.transport.exchange(
                        partial(self._send, attempt, leg), attempt.route
                    ) as (slot, upstream):
                        error = await self._pass_on(attempt, slot, upstream, send)
                        if error is None:
                            record.outcome = "ok"
                            return
                        failure, failed = error, failed | {slot.replica_id}
                except ReplicaFailed as broken:
                    failure, failed = _broken_off(), failed | {broken.replica_id}
                finally:
                    attempt.ended()
                leg.failed(failure.code)
            logger.warning("request %s failed on %s", self._request.request_id, [*failed])
            if self._started:
                break
        raise failure

    async def _send(self, attempt: Attempt, leg: Leg, slot: Slot) -> aiohttp.ClientResponse:
        request, leg.replica_id = attempt.request, slot.replica_id
        headers = {
            **leg.headers,
            **slot.headers,
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": request.request_id,
            EXPECTED_CACHED_HEADER: str(attempt.expected_cached),
        }
        self._sent = asyncio.get_running_loop().time()
        return await self._session.post(slot.url + request.path, data=request.body, headers=headers)

    async def _pass_on(
        self, attempt: Attempt, slot: Slot, upstream: aiohttp.ClientResponse, send: Send
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
            told = attempt.answered(slot, upstream.headers, self._ttft(upstream))
            record = self._request.record
            record.status = upstream.status
            if not self._streaming:
                record.output_tokens = count_in(upstream.headers, OUTPUT_TOKENS_HEADER)
            # the client has waited for its first token long enough
            asyncio.get_running_loop().call_soon(self._watch.first_token, record)
            await send(self._start(slot, upstream, told))
            await self._pass_on_body(upstream, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return None
        except aiohttp.ClientError as error:
            raise ReplicaFailed(slot.replica_id) from error

    async def _pass_on_body(self, upstream: aiohttp.ClientResponse, send: Send) -> None:
        record, now = self._request.record, asyncio.get_running_loop().time
        last: float | None = None
        async for piece in upstream.content.iter_any():
            chunk = piece
            if self._streaming:
                if OUTPUT_TOKENS_COMMENT in chunk:
                    chunk, record.output_tokens = without_output_tokens(chunk)
                    if not chunk:
                        continue
                at = now()
                if last is not None:
                    record.gaps_s.append(at - last)
                last = at
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _ttft(self, upstream: aiohttp.ClientResponse) -> float:
        """Seconds from the request to its first token; an answer in one piece comes later."""
        until = asyncio.get_running_loop().time()
        if not self._streaming:
            with contextlib.suppress(KeyError, ValueError):
                until = self._sent + float(upstream.headers[ENGINE_TTFT_HEADER])
        return until - self._request.arrived

    def _start(
        self, slot: Slot, upstream: aiohttp.ClientResponse, told: Mapping[str, str]
    ) -> Message:
        headers = [(k.lower(), v) for k, v in upstream.headers.items() if k.lower() in _PASSED_ON]
        headers.append(("x-request-id", self._request.request_id))
        headers.append(("x-antefix-replica", slot.replica_id))
        headers += told.items()
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
