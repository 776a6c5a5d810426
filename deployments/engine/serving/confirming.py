"""The replica's side of `deployments.wire.confirmation`: headers on each answer, and its load.

A gateway that requests a resumable answer also gets its tokens (`deployments.wire.resumable`). When
a gateway's request has ended, the replica logs one line about it, without any of its content.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.engine.serving.final_counts import ExchangeCounts
from deployments.wire import resumable, tenant
from deployments.wire.confirmation import Confirmation, current
from deployments.wire.headers import (
    ANSWER_COMMENT,
    CANNOT_RESUME,
    ENGINE_DEAD,
    EXPECTED_CACHED_HEADER,
    KV_SOURCE_HEADER,
    KV_TIERS_HEADER,
    LOAD_HEADER,
    OUTPUT_TOKENS_COMMENT,
    PROGRESS_CONTENT_TYPE,
    RESUMABLE_HEADER,
    SALT_HEADER,
    TENANT_HEADER,
    TICKET_HEADER,
    TIER_TOKENS_HEADER,
    TOKENS_PATH,
)
from deployments.wire.inference_paths import GENERATING, RESPONSES
from deployments.wire.resumable import (
    NotResumable,
    ResumableExchange,
    extract_known,
)
from router.board.load import LoadReport

# Operators filter by this name and this message, so they stay the same if the module moves.
logger = logging.getLogger("deployments.engine.request_log")
MESSAGE = "request ended in the engine"


class Confirming:
    """ASGI: sets `current` for the inner application, and adds its headers and those of `load` to
    the answer."""

    def __init__(self, app: ASGIApp, load: Callable[[], LoadReport]) -> None:
        self._app = app
        self._load = load
        self._counts = ExchangeCounts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == TOKENS_PATH:
            await self._counts(scope, receive, send)
            return
        asked = dict(scope["headers"])
        expected = asked.get(EXPECTED_CACHED_HEADER.encode())
        kv_tiers = asked.get(KV_TIERS_HEADER.encode(), b"").decode("latin-1")
        kv_source = asked.get(KV_SOURCE_HEADER.encode(), b"").decode("latin-1")
        tier_tokens = _tier_tokens(asked.get(TIER_TOKENS_HEADER.encode(), b""))
        confirmation = Confirmation(_number(expected or b"0"), kv_tiers, kv_source, tier_tokens)
        token = current.set(confirmation)
        tenant.current.set(asked.get(TENANT_HEADER.encode(), b"").decode("latin-1"))
        tenant.salt.set(asked.get(SALT_HEADER.encode(), b"").decode("latin-1"))
        ticket = asked.get(TICKET_HEADER.encode(), b"").decode("latin-1")
        try:
            with self._counts.of(ticket, confirmation):
                if asked.get(RESUMABLE_HEADER.encode()) == b"1":
                    await self._resumable(scope, receive, send, confirmation)
                    return
                answer = _Answer(send, confirmation, self._load, counts=expected is not None)
                await self._app(scope, receive, answer.send)
        finally:
            current.reset(token)
            if request_id := asked.get(b"x-request-id"):
                _log(request_id.decode("latin-1"), scope["path"], confirmation)

    async def _resumable(
        self, scope: Scope, receive: Receive, send: Send, confirmation: Confirmation
    ) -> None:
        body = await _body_of(receive)
        if body is None:
            return
        try:
            body, known = extract_known(body)
            if known is not None and scope["path"] not in GENERATING:
                raise NotResumable(f"The engine cannot resume an answer of {scope['path']}.")
        except NotResumable as error:
            await _refuse(send, str(error))
            return
        exchange = ResumableExchange(known, scope["path"]) if scope["path"] in GENERATING else None
        confirmation.known_tokens = exchange.known_tokens if exchange else 0
        answer = (
            _ResumableAnswer(send, confirmation, self._load, exchange)
            if exchange
            else _Answer(send, confirmation, self._load, counts=True)
        )
        headers = [
            (name, b"%d" % len(body) if name.lower() == b"content-length" else value)
            for name, value in scope["headers"]
        ]
        token = resumable.current.set(exchange)
        try:
            await self._app({**scope, "headers": headers}, _again(body, receive), answer.send)
        except Exception:
            if exchange is None or exchange.refused is None:
                raise
        finally:
            resumable.current.reset(token)
            await answer.close()


class _Answer:
    """An answer with headers, and with the token count before the events of a stream, if a gateway
    `counts` them.

    A stream starts with its first token: keep-alive comments before that are dropped.
    """

    def __init__(
        self,
        send: Send,
        confirmation: Confirmation,
        load: Callable[[], LoadReport],
        counts: bool,
    ) -> None:
        self._send = send
        self._confirmation = confirmation
        self._load = load
        # a client that calls an engine directly gets vLLM's answer unchanged
        self._counts = counts
        self._start: Message | None = None
        self._streams = False
        self._counted_tokens = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start, self._streams = message, self._counts and _is_event_stream(message)
            return
        if self._streams and self._start is not None and _is_comment(message):
            return
        await self._begin()
        await self._send(self._counted(message))

    async def close(self) -> None:
        """Finish the answer; the application has returned."""

    async def _begin(self, *more: tuple[bytes, bytes]) -> None:
        if self._start is None:
            return
        start, self._start = self._start, None
        report = (LOAD_HEADER.encode(), self._load().to_header().encode())
        counts = self._confirmation.headers(is_error=start["status"] >= 400)
        headers = [*start.get("headers", []), *counts, report, *more]
        await self._send({**start, "headers": headers})

    def _counted(self, message: Message) -> Message:
        tokens, body = self._confirmation.output_tokens, message.get("body", b"")
        if not self._streams or self._confirmation.first_token_at is None:
            return message
        if _is_last(message):
            return {**message, "body": body + self._last_count()}
        if tokens == self._counted_tokens:
            return message
        self._counted_tokens = tokens
        return {**message, "body": OUTPUT_TOKENS_COMMENT + b"%d\n\n" % tokens + body}

    def _last_count(self) -> bytes:
        """A comment with the number of tokens, and why the answer ended."""
        reason = self._confirmation.finish_reason.encode()
        said = b"%d %b" % (self._confirmation.output_tokens, reason)
        return OUTPUT_TOKENS_COMMENT + said.rstrip() + b"\n\n"


class _ResumableAnswer(_Answer):
    """An answer with its tokens, and without the events that the client already has.

    An answer in one piece starts with its first token; its bytes follow at its end, behind a
    comment.
    """

    def __init__(
        self,
        send: Send,
        confirmation: Confirmation,
        load: Callable[[], LoadReport],
        exchange: ResumableExchange,
    ) -> None:
        super().__init__(send, confirmation, load, counts=True)
        self._exchange = exchange
        self._begun = self._ended = self._failed_replaying = False
        self._early = b""  # of a stream, from before the call of the engine
        self._whole, self._status = b"", 200  # of an answer in one piece
        self._progress: asyncio.Task[None] | None = None
        self._told, self._sending = asyncio.Event(), asyncio.Lock()
        exchange.on_chunk = self._on_chunk

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if exchange.refused is not None or (exchange.lost and self._begun):
            return  # `close` reports it, or the end of the connection does
        # a stream of responses starts before its engine is called
        if message["type"] == "http.response.body" and exchange.path == RESPONSES:
            body = self._early + message.get("body", b"")
            if self._streams and not exchange.prompts and not _is_last(message):
                self._early = body
                return
            message, self._early = {**message, "body": body}, b""
        if not exchange.offered:
            await super().send(message)
        elif message["type"] == "http.response.start":
            self._streams, self._status = _is_event_stream(message), message["status"]
            if not self._begun:
                self._start = message
        elif self._streams:
            await self._send_events(message)
        else:
            self._whole += message.get("body", b"")
            if _is_last(message):
                await self._send_whole()

    async def close(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
            await asyncio.wait([self._progress])
        if self._exchange.lost and self._begun:
            await self._send(_part(self._exchange.comments()))
        if self._exchange.refused is not None and not self._begun:
            await _refuse(self._send, self._exchange.refused)
        elif self._failed_replaying:
            await _fail(self._send, is_lost=self._exchange.lost)

    async def _send_events(self, message: Message) -> None:
        if not self._begun and _is_comment(message):
            return
        exchange = self._exchange
        body = exchange.first_events.dropped_from(message.get("body", b""))
        if body and exchange.replaying and exchange.exact_events and not exchange.failed:
            raise exchange.refuse(
                "The engine cannot resume: the logprobs of a token were lost with the other engine."
            )
        last = _is_last(message)
        if not body and not last:
            return
        if exchange.first_events.missing:
            self._failed_replaying = exchange.failed  # another engine may resume the answer
            if not exchange.failed:
                exchange.refuse(
                    "The engine cannot resume: it generated fewer events than the client has."
                )
            return
        self._begun = True
        await self._begin(*self._exchange.headers)
        message = {**message, "body": exchange.comments() + body}
        await self._send(self._counted(message) if last else message)

    def _on_chunk(self) -> None:
        if self._exchange.in_one_piece:
            self._told.set()
            if self._progress is None:
                self._progress = asyncio.get_running_loop().create_task(self._send_progress())

    async def _send_progress(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            async with self._sending:
                if not self._ended:
                    await self._begin_progress()
                    await self._send(_part(self._exchange.comments()))

    async def _begin_progress(self) -> None:
        if self._begun:
            return
        self._begun = True
        kind = (b"content-type", PROGRESS_CONTENT_TYPE.encode())
        self._start = {"type": "http.response.start", "status": 200, "headers": [kind]}
        await self._begin(*self._exchange.headers)

    async def _send_whole(self) -> None:
        async with self._sending:
            self._ended = True
            if self._status != 200 and not self._begun:
                await self._begin()
                await self._send({"type": "http.response.body", "body": self._whole})
                return
            await self._begin_progress()
            failed = b"" if self._status == 200 else b" %d" % self._status
            comment = ANSWER_COMMENT + b"%d%s\n\n" % (len(self._whole), failed)
            body = self._exchange.comments() + self._last_count() + comment + self._whole
            await self._send({"type": "http.response.body", "body": body})


def _log(request_id: str, path: str, confirmation: Confirmation) -> None:
    """Log the counts and times of one exchange. An answer without a `finish_reason` was not
    generated to its end."""
    if not logger.isEnabledFor(logging.INFO):
        return
    began, first_token_at = confirmation.arrived_at, confirmation.first_token_at
    facts: dict[str, str | int | float] = {
        "request_id": request_id,
        "path": path,
        "duration_s": round(time.monotonic() - began, 5),
    }
    if first_token_at is not None:
        facts |= {
            "ttft_s": round(first_token_at - began, 5),
            "prompt_tokens": confirmation.prompt_tokens,
            "cached_tokens": confirmation.cached_tokens,
            "output_tokens": confirmation.output_tokens,
        }
    if confirmation.finish_reason:
        facts["finish_reason"] = confirmation.finish_reason
    logger.info(MESSAGE, extra={"facts": facts})


async def _body_of(receive: Receive) -> bytes | None:
    """Return the request's body; None if the client has disconnected."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that repeats the body, then continues."""
    read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return read.pop() if read else await receive()

    return again


async def _refuse(send: Send, reason: str) -> None:
    await _send_error(send, 409, reason, "conflict", CANNOT_RESUME)


async def _fail(send: Send, *, is_lost: bool) -> None:
    reason = ENGINE_DEAD if is_lost else "The engine failed before it could resume the answer"
    await _send_error(send, 500, f"{reason}.", "server_error", "500")


async def _send_error(send: Send, status: int, message: str, kind: str, code: str) -> None:
    error = {"message": message, "type": kind, "param": None, "code": code}
    content_type = (b"content-type", b"application/json")
    await send({"type": "http.response.start", "status": status, "headers": [content_type]})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _is_last(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body")


def _is_comment(message: Message) -> bool:
    """Return whether the message is a comment of a stream, such as vLLM's keep-alives, which it
    sends whole."""
    body: bytes = message.get("body", b"")
    return body.startswith(b":") and body.find(b"\n\n") == len(body) - 2


def _is_event_stream(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    return bool(headers.get(b"content-type", b"").startswith(b"text/event-stream"))


def _tier_tokens(header: bytes) -> tuple[int, int, int]:
    """Return the tokens of TIER_TOKENS_HEADER; 0 for those that a gateway of another release does
    not send."""
    host, disk, peer, *_ = (*map(_number, header.split(b" ")), 0, 0, 0)
    return host, disk, peer


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 0
