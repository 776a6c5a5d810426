"""The replica's side of `deployments.wire.confirmation`: headers on each answer, and its load's."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.wire.confirmation import Confirmation, current
from deployments.wire.headers import EXPECTED_CACHED_HEADER, LOAD_HEADER, OUTPUT_TOKENS_COMMENT
from router.load import LoadReport


class Confirming:
    """ASGI: `current` for the application inside, its headers and `load`'s on the answer."""

    def __init__(self, app: ASGIApp, load: Callable[[], LoadReport]) -> None:
        self._app = app
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        expected = dict(scope["headers"]).get(EXPECTED_CACHED_HEADER.encode())
        confirmation = Confirmation(expected_cached=_number(expected or b"0"))
        start: Message | None = None
        streams = False

        async def confirm(message: Message) -> None:
            nonlocal start, streams
            if message["type"] == "http.response.start":
                # who asks an engine itself gets what vLLM says, and nothing else
                start, streams = message, expected is not None and _is_event_stream(message)
                return
            if start is not None:
                report = (LOAD_HEADER.encode(), self._load().to_header().encode())
                headers = [*start.get("headers", []), *confirmation.headers(), report]
                await send({**start, "headers": headers})
                start = None
            ends = message["type"] == "http.response.body" and not message.get("more_body")
            if ends and streams and confirmation.first_token_at is not None:
                comment = OUTPUT_TOKENS_COMMENT + b"%d\n\n" % confirmation.output_tokens
                message = {**message, "body": message.get("body", b"") + comment}
            await send(message)

        token = current.set(confirmation)
        try:
            await self._app(scope, receive, confirm)
        finally:
            current.reset(token)


def _is_event_stream(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    return bool(headers.get(b"content-type", b"").startswith(b"text/event-stream"))


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 0
