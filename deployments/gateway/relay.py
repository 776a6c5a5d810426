"""One request on its way to an engine and back, as an ASGI response.

Nothing is lost on the way: the engine's bytes reach the client as they come, a client that
leaves aborts the generation, a deadline ends it, and a replica that fails before it has said
anything costs the client a retry's time, not an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial

import aiohttp
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from deployments.gateway.engine_attempt import EngineAttempt
from deployments.gateway.errors import ApiError, from_engine
from deployments.gateway.request import client_gone
from deployments.gateway.request_watch import RequestWatch
from deployments.gateway.transport import NoReplicaUp, ReplicaFailed, Reservation
from deployments.wire.confirmation import StreamEnd, count_in
from deployments.wire.headers import (
    ENGINE_TTFT_HEADER,
    EXPECTED_CACHED_HEADER,
    OUTPUT_TOKENS_HEADER,
)
from observability.request_record import Leg

logger = logging.getLogger("ray.serve")

# One retry: a request that kills the engine it runs on must not take the whole pool along.
ATTEMPTS = 2
# A client that reads nothing must not hold its request's task past the deadline.
LAST_WORDS_S = 1.0
_PASSED_ON = {"content-type", "content-length"}


class Relay(Response):
    """Carries a request that was let in to where `attempt` says, and its answer back."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        attempt: EngineAttempt,
        watch: RequestWatch,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._told = headers
        self._watch = watch
        self._session = session
        self._attempt = attempt
        self._request = attempt.request
        self._streaming = False
        self._started = False
        self._sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tracked(message: Message) -> None:
            self._started = True
            await send(message)

        work = asyncio.ensure_future(self._answer(tracked))
        gone = asyncio.ensure_future(client_gone(receive))
        timeout = max(0.0, self._request.deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.wait({work, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif not gone.done():
                await _cancelled(work)
                raise self._request.deadline_passed()
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
        attempt = self._attempt
        try:
            record.trace.placed(attempt.facts)
        except Exception:  # a trace must not cost a request, nor its place
            logger.exception("request %s is not traced", self._request.request_id)
        tries, is_lost = 0, False
        while tries < ATTEMPTS:
            if is_lost:
                attempt = await attempt.elsewhere()
            elif failed:
                attempt = attempt.again(failed)
            tries, is_lost = tries + 1, False
            with record.trace.attempt(record) as leg:
                try:
                    async with attempt.transport.exchange(
                        partial(self._send, attempt, leg), attempt.route
                    ) as (place, upstream):
                        error = await self._pass_on(attempt, place, upstream, send)
                        if error is None:
                            record.outcome = "ok"
                            return
                        failure, failed = error, failed | {place.replica_id}
                except ReplicaFailed as broken:
                    failure, failed = _broken_off(), failed | {broken.replica_id}
                except NoReplicaUp:  # once at most
                    tries, is_lost = tries - 1, True
                    continue
                finally:
                    attempt.ended()
                leg.failed(failure.code)
            logger.warning("request %s failed on %s", self._request.request_id, [*failed])
            if self._started:
                break
        raise failure

    async def _send(
        self, attempt: EngineAttempt, leg: Leg, place: Reservation
    ) -> aiohttp.ClientResponse:
        request, leg.replica_id = attempt.request, place.replica_id
        headers = {
            **leg.headers,
            **place.headers,
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": request.request_id,
            EXPECTED_CACHED_HEADER: str(attempt.expected_cached),
        }
        self._sent = asyncio.get_running_loop().time()
        return await self._session.post(
            place.url + request.path, data=request.engine_body, headers=headers
        )

    async def _pass_on(
        self,
        attempt: EngineAttempt,
        place: Reservation,
        upstream: aiohttp.ClientResponse,
        send: Send,
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
            told = attempt.answered(place, upstream.headers, self._first_token_at(upstream))
            record = self._request.record
            record.status = upstream.status
            if not self._streaming:
                record.output_tokens = count_in(upstream.headers, OUTPUT_TOKENS_HEADER)
            # the client has waited for its first token long enough
            asyncio.get_running_loop().call_soon(self._watch.first_token, record)
            await send(self._start(place, upstream, told))
            await self._pass_on_body(upstream, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return None
        except aiohttp.ClientError as error:
            raise ReplicaFailed(place.replica_id) from error

    async def _pass_on_body(self, upstream: aiohttp.ClientResponse, send: Send) -> None:
        record, now = self._request.record, asyncio.get_running_loop().time
        last: float | None = None
        end = StreamEnd()
        async for piece in upstream.content.iter_any():
            chunk = piece
            if self._streaming:
                chunk = end.passed_on(piece)
                if not chunk:
                    continue
                at = now()
                if last is not None:
                    record.gaps_s.append(at - last)
                last = at
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self._streaming:
            chunk, record.output_tokens = end.rest()
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _first_token_at(self, upstream: aiohttp.ClientResponse) -> float:
        """On the loop's clock; an answer in one piece comes later."""
        until = asyncio.get_running_loop().time()
        if not self._streaming:
            with contextlib.suppress(KeyError, ValueError):
                until = self._sent + float(upstream.headers[ENGINE_TTFT_HEADER])
        return until

    def _start(
        self, place: Reservation, upstream: aiohttp.ClientResponse, told: Mapping[str, str]
    ) -> Message:
        headers = [(k.lower(), v) for k, v in upstream.headers.items() if k.lower() in _PASSED_ON]
        headers.append(("x-request-id", self._request.request_id))
        headers.append(("x-antefix-replica", place.replica_id))
        headers += {**self._told, **told}.items()
        if self._streaming:
            headers += [("cache-control", "no-cache"), ("x-accel-buffering", "no")]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return {"type": "http.response.start", "status": upstream.status, "headers": raw}

    def _engine_error(self, status: int, body: bytes) -> ApiError:
        if status == 404:
            message = (
                f"The model {self._request.model!r} does not support {self._request.path}."
                " Choose another model or another path."
            )
            return ApiError(400, message, code="unsupported_endpoint", param="model")
        return from_engine(status, body, self._request.request_id)

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the client, unless it takes nothing: then its connection is cut."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                if not self._started:
                    own = {"x-request-id": self._request.request_id}
                    headers = {**self._told, **error.headers, **own}
                    response = JSONResponse(error.body(), error.status, headers)
                    await response(scope, receive, send)
                elif self._streaming:
                    body = {"type": "http.response.body", "body": error.event()}
                    await send({**body, "more_body": False})
                # a half-sent JSON body can only be cut, which the server does


def _broken_off() -> ApiError:
    message = "The engine broke off. Send the request again."
    return ApiError(503, message, code="engine_unavailable", retry_after=1)


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
