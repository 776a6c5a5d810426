"""Answers to HTTP/1.0, which has no chunks: without a length they end with their connection.

uvicorn sends chunks to every client. RFC 9112 (6.1) forbids them before HTTP/1.1, because an older
client reads the chunk sizes as part of the answer.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def unchunked(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """ASGI: `app`, whose answer `cycle` sends; `cycle` ends its connection after an answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = False

        async def sent(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                has_length = b"content-length" in names
                if not has_length:
                    cycle.chunked_encoding = False
            elif not has_length:
                # uvicorn compares each piece with it
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sent)

    return answer
