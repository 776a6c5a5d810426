"""Clients that do what no client should: each sends, stalls, or leaves in a different way.

A client is content where its connection ends, or something that is no 5xx is answered, in time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tests.wrong_requests.asking import (
    ANSWERED_WITHIN_S,
    Answer,
    Connection,
    Port,
    connected,
    fault_in,
    json_request,
)

CHAT = "/v1/chat/completions"
# A stall that no limit forbids.
PAUSE_S = 0.3
LEFT_UNREAD_S = 3.0
# One that every limit does.
TRICKLE_S = 0.5
ID = (b"x-request-id", b"the-same-for-all")

# What is sent as it is, on any port; some are requests, except for their bodies.
NONSENSE: dict[str, bytes] = {
    "nothing but lines": b"\r\n" * 100,
    "words": b"hello\r\n\r\n",
    "bytes": bytes(range(256)) * 40,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9": b"GET / HTTP/9.9\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "a proxy's request": b"CONNECT here:80 HTTP/1.1\r\n\r\n",
    "a long target": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\na: " + b"a" * 70_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nhost\r\n\r\n",
    "a header of two lines": b"GET / HTTP/1.1\r\nhost: a\r\n b\r\n\r\n",
    "a header with a zero": b"GET / HTTP/1.1\r\nhost: a\0b\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "line feeds alone": b"GET /v1/models HTTP/1.1\nhost: a\n\n",
    "a length that is none": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: many\r\n\r\n",
    "a length below zero": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    "a length of many digits": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: "
    + b"9" * 40
    + b"\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n"
    b"content-length: 2\r\n\r\nab",
    "a length and chunks": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length too small": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}{}{}\r\n",
    "an encoding that is none": b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: odd\r\n\r\n",
}

_CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
# Bodies in chunks, by what is odd about them.
CHUNKS: dict[str, bytes] = {
    "a size that is none": b"size\r\n{}\r\n0\r\n\r\n",
    "a size below zero": b"-2\r\n{}\r\n0\r\n\r\n",
    "a size without end": b"f" * 40 + b"\r\n{}",
    "a size too small": b"1\r\n{}\r\n0\r\n\r\n",
    "a long extension": b"2;" + b"a" * 70_000 + b"\r\n{}\r\n0\r\n\r\n",
    "many of one byte": b"1\r\n \r\n" * 5000 + b"0\r\n\r\n",
    "trailers": b"2\r\n{}\r\n0\r\nhost: b\r\nx-request-id: c\r\n\r\n",
    "trailers without end": b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 20_000,
}

Client = Callable[[Port, str], Awaitable[str | None]]


def chat(port: Port, model: str, *headers: tuple[bytes, bytes], **fields: Any) -> bytes:
    """The bytes of a request for a chat of three tokens, unless `fields` say otherwise."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    body = {"model": model, "messages": messages, "max_tokens": 3, **fields}
    request = json_request(CHAT, body)
    return replace(request, headers=(*request.headers, *headers)).sent_to(port)


def head(port: Port, *headers: bytes) -> bytes:
    """Of a request for a chat, except the headers of its body's length."""
    own = [name + b": " + value + b"\r\n" for name, value in port.headers]
    typed = b"content-type: application/json\r\n"
    return b"".join([b"POST ", CHAT.encode(), b" HTTP/1.1\r\n", *own, typed, *headers])


def _fault_in_optional(answer: Answer | None, port: Port) -> str | None:
    return None if answer is None else fault_in(answer, port)


async def _says(port: Port, data: bytes) -> str | None:
    async with connected(port) as connection:
        await connection.send(data)
        return _fault_in_optional(await connection.answer(), port)


def _nonsense(data: bytes) -> Client:
    async def client(port: Port, model: str) -> str | None:
        return await _says(port, data)

    return client


def _chunks(data: bytes) -> Client:
    async def client(port: Port, model: str) -> str | None:
        return await _says(port, head(port, _CHUNKED) + data)

    return client


async def _trickle(connection: Connection, begin: bytes, piece: bytes) -> Answer | None:
    """Send the piece again and again until something is answered."""
    await connection.send(begin)
    answered = asyncio.ensure_future(connection.answer())
    try:
        while not (await asyncio.wait({answered}, timeout=TRICKLE_S))[0]:
            await connection.send(piece)
        return answered.result()
    finally:
        answered.cancel()


async def sends_headers_slowly(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        begin = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n"
        return _fault_in_optional(await _trickle(connection, begin, b"a: b\r\n"), port)


async def sends_a_body_slowly(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        begin = head(port, b"content-length: 100000\r\n\r\n{")
        return _fault_in_optional(await _trickle(connection, begin, b" "), port)


async def sends_chunks_slowly(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        return _fault_in_optional(
            await _trickle(connection, head(port, _CHUNKED), b"1\r\n \r\n"), port
        )


async def sends_half_a_body(port: Port, model: str) -> str | None:
    return await _says(port, head(port, b"content-length: 1000\r\n\r\n{"))


async def sends_a_request_in_pieces(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        whole = chat(port, model)
        for piece in (whole[:10], whole[10:60], whole[60:-5], whole[-5:]):
            await connection.send(piece)
            await asyncio.sleep(PAUSE_S)
        answer = await connection.answer()
    return "closed unanswered" if answer is None else fault_in(answer, port)


async def closes_its_side_after_the_request(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        await connection.send(chat(port, model))
        connection.end_sending()
        return _fault_in_optional(await connection.answer(), port)


async def closes_its_side_within_the_head(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        await connection.send(head(port))
        connection.end_sending()
        return _fault_in_optional(await connection.answer(), port)


async def closes_its_side_within_the_body(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        await connection.send(head(port, b"content-length: 1000\r\n\r\n{"))
        connection.end_sending()
        return _fault_in_optional(await connection.answer(), port)


async def connects_and_leaves(port: Port, model: str) -> str | None:
    for reset in (False, True) * 10:
        async with connected(port) as connection:
            if reset:
                connection.reset()
    return None


async def resets_within_the_body(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        await connection.send(head(port, b"content-length: 1000\r\n\r\n{"))
        await asyncio.sleep(PAUSE_S)
        connection.reset()
    return None


async def resets_within_a_stream(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        await connection.send(chat(port, model, stream=True, max_tokens=200, ignore_eos=True))
        await asyncio.sleep(PAUSE_S)
        connection.reset()
    return None


async def resets_before_the_answer(port: Port, model: str) -> str | None:
    """Which is in one piece, and is being made."""
    async with connected(port) as connection:
        await connection.send(chat(port, model, max_tokens=200, ignore_eos=True))
        await asyncio.sleep(PAUSE_S)
        connection.reset()
    return None


async def leaves_at_once(port: Port, model: str) -> str | None:
    for _ in range(10):
        async with connected(port) as connection:
            await connection.send(chat(port, model))
            connection.reset()
    return None


async def never_reads_a_stream(port: Port, model: str) -> str | None:
    async with connected(port, receive_bytes=1024) as connection:
        await connection.send(chat(port, model, stream=True, max_tokens=100, logprobs=True))
        await asyncio.sleep(LEFT_UNREAD_S)
    return None


async def never_reads_anything(port: Port, model: str) -> str | None:
    """As many answers as may wait, of which the kernel takes a few."""
    async with connected(port, receive_bytes=1024) as connection:
        await connection.send(b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n" * 16)
        await asyncio.sleep(LEFT_UNREAD_S)
    return None


async def sends_the_next_before_the_answer(port: Port, model: str) -> str | None:
    one = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
    async with connected(port) as connection:
        await connection.send(one * 3 + b"nonsense\r\n\r\n" + one)
        told = await connection.rest()
    statuses = [int(line.split()[1]) for line in told.split(b"\r\n") if line[:7] == b"HTTP/1."]
    return f"{statuses}: {told[:300]!r}" if max(statuses, default=0) >= 500 else None


async def sends_more_than_it_said(port: Port, model: str) -> str | None:
    async with connected(port) as connection:
        await connection.send(chat(port, model) + b'{"and": "more"}' * 100)
        return _fault_in_optional(await connection.answer(), port)


async def says_everything_twice(port: Port, model: str) -> str | None:
    twice = [*port.headers, (b"content-type", b"application/json"), ID, (ID[0], b"another")]
    return await _says(port, chat(port, model, *twice))


async def has_two_keys(port: Port, model: str) -> str | None:
    return await _says(port, chat(port, model, (b"authorization", b"Bearer another")))


async def asks_eight_times_by_one_id(port: Port, model: str) -> str | None:
    """At once, some of them streamed, and each reader of one reads another's."""
    asked = [
        chat(port, model, ID, request_id="one", stream=bool(i % 2), max_tokens=8) for i in range(8)
    ]
    faults = await asyncio.gather(*(_says(port, one) for one in asked))
    return next((fault for fault in faults if fault), None)


async def streams_what_no_answer_can_be(port: Port, model: str) -> str | None:
    """An engine finds out when its answer has begun."""
    never = {"json": {"$ref": "#"}}
    return await _says(port, chat(port, model, stream=True, structured_outputs=never))


async def waits_to_be_asked_for_its_body(port: Port, model: str) -> str | None:
    body = json.dumps({"model": model}).encode()
    begin = head(port, b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % len(body))
    async with connected(port) as connection:
        await connection.send(begin)
        await asyncio.sleep(PAUSE_S)
        await connection.send(body)
        return _fault_in_optional(await connection.answer(), port)


CLIENTS: dict[str, Client] = {
    **{f"sends {what}": _nonsense(data) for what, data in NONSENSE.items()},
    **{f"sends a chunk with {what}": _chunks(data) for what, data in CHUNKS.items()},
    **{
        client.__name__.replace("_", " "): client
        for client in (
            *(sends_headers_slowly, sends_a_body_slowly, sends_chunks_slowly, sends_half_a_body),
            *(sends_a_request_in_pieces, closes_its_side_after_the_request),
            *(closes_its_side_within_the_head, closes_its_side_within_the_body),
            *(connects_and_leaves, resets_within_the_body, resets_within_a_stream),
            *(resets_before_the_answer, leaves_at_once),
            *(never_reads_a_stream, never_reads_anything, sends_the_next_before_the_answer),
            *(sends_more_than_it_said, says_everything_twice, has_two_keys),
            *(
                asks_eight_times_by_one_id,
                streams_what_no_answer_can_be,
                waits_to_be_asked_for_its_body,
            ),
        )
    },
}


async def faults_of_clients(port: Port, model: str) -> list[str]:
    """Together, each until it is done."""
    room = asyncio.Semaphore(port.at_once)

    async def fault(name: str, client: Client) -> str | None:
        try:
            async with room, asyncio.timeout(ANSWERED_WITHIN_S):
                found = await client(port, model)
        except TimeoutError:
            found = f"neither answered nor closed within {ANSWERED_WITHIN_S:g} s"
        return f"a client that {name}: {found}" if found else None

    found = await asyncio.gather(*(fault(*one) for one in CLIENTS.items()))
    return [one for one in found if one]
