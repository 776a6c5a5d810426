"""HTTP/1.0 gets no chunks, and heads that two servers may read in two ways are refused."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.process.pieces import pieces_of
from tests.deployments.process.connections import refusal_on, serving

EVENTS = (b"data: one\n\n", b"data: two\n\n")
HTTP_1_0 = b"POST /v1/completions HTTP/1.0\r\ncontent-length: 0\r\n"


async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in EVENTS:
        if (pieces := pieces_of(scope)).take_one:
            pieces.write(event)
        else:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    last: Message = {"type": "http.response.body", "body": b"", "more_body": False}
    await send(last)


async def whole_answer(sent: bytes, app: object = streaming) -> tuple[bytes, bytes]:
    """Head and body, up to the end of the connection."""
    async with serving(app) as served:  # type: ignore[arg-type]
        reader, writer = await served.connect()
        writer.write(sent)
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    return head.lower(), body


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n", b"host: here\r\n"])
async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_its_connection(
    more: bytes,
) -> None:
    head, body = await whole_answer(HTTP_1_0 + more + b"\r\n")
    assert body == b"".join(EVENTS)
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


async def test_a_stream_to_http_1_1_has_chunks() -> None:
    asked = b"POST / HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    head, body = await whole_answer(asked)
    assert b"transfer-encoding: chunked" in head
    assert body == b"".join(b"%x\r\n%b\r\n" % (len(of), of) for of in EVENTS) + b"0\r\n\r\n"


async def test_an_answer_of_known_length_to_http_1_0_keeps_its_length() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(HTTP_1_0 + b"\r\n")
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"content-length: %d" % len(body) in head
    assert body == b'{"bytes":0}'


async def test_a_head_request_over_http_1_0_gets_only_the_headers_of_a_stream() -> None:
    head, body = await whole_answer(b"HEAD / HTTP/1.0\r\n\r\n")
    assert (head.split()[1], body) == (b"200", b"")
    assert b"transfer-encoding" not in head


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n", "invalid_http"),
        (b"POST / HTTP/1.0\r\nhost: a\r\nTransfer-Encoding: chunked\r\n", "invalid_http"),
        (b"GET / HTTP/1.1\r\n", "invalid_host"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n", "invalid_host"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n", "invalid_host"),
        (b"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n", "invalid_host"),
        (b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n", "invalid_host"),
    ],
)
async def test_an_ambiguous_request_head_is_rejected(head: bytes, code: str) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(head + b"\r\n")
        assert await refusal_on(reader) == (400, code)
        writer.close()
        assert not served.asked


async def test_http_1_0_needs_no_host() -> None:
    head, _ = await whole_answer(b"GET / HTTP/1.0\r\n\r\n")
    assert head.split()[1] == b"200"
