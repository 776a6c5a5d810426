"""Send requests when they are due, open loop, and record the arrival time of each token.

An arrival never waits for an earlier answer; only the next request of a session does, like a
person. Times start when a request was due, so that a late client does not flatter a slow server:
there is no coordinated omission. The client's delay is recorded separately. A failed request is
recorded with its reason, and the others continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from loadgen.token_stream import BadStream, TokenStream

# A body is made this long before it is due, so that making it delays no request.
PREPARE_S = 0.25
# The longest wait for one answer.
TIMEOUT_S = 300.0
# The length of an error that is shown.
REASON_CHARACTERS = 300
CACHED_HEADER = "x-antefix-cached-tokens"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class PlannedRequest:
    """A request, sent `think_s` after the answer to the previous one in its session. `body` is
    called shortly before."""

    path: str
    body: Callable[[], Mapping[str, Any]]
    headers: Mapping[str, str] = field(default_factory=dict)
    think_s: float = 0.0


@dataclass(frozen=True)
class PlannedSession:
    """A session. Its first request is due at `arrives_at`, regardless of other sessions."""

    name: str
    arrives_at: float
    requests: Sequence[PlannedRequest]


@dataclass(frozen=True)
class SentRequest:
    """The result of one request. Times in seconds from the start of the run.

    `token_times_s`: the time of each event with tokens. `output_tokens` and the prompt's tokens are
    the server's counts, None if it does not report them. `status` 0: no answer started. `error`:
    the kind of failure, None for a whole answer. `headers`: those of the answer that start with x-,
    and retry-after, in lower case.
    """

    session: str
    turn: int
    due_s: float
    sent_s: float
    ended_s: float
    status: int = 0
    error: str | None = None
    reason: str = ""
    first_byte_s: float | None = None
    token_times_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Clock:
    """Seconds since its creation, on a monotonic clock."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def until(self, at: float) -> None:
        # a loop's timer may be early by its resolution
        while (left := at - self.now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)


class Player:
    """Plays sessions against the API at `url`.

    Observers can read the numbers of requests `sent`, `ended` and `failed` meanwhile.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        headers: Mapping[str, str],
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self._http = http
        self._url = url
        self._headers = headers
        self._timeout_s = timeout_s
        self._clock = clock or Clock()
        self.sent = self.ended = self.failed = 0

    async def play(self, sessions: Sequence[PlannedSession]) -> list[SentRequest]:
        """Play the sessions. Return the result of each request, in the order of sessions and their
        turns."""
        tasks: dict[int, asyncio.Task[list[SentRequest]]] = {}
        in_order = sorted(range(len(sessions)), key=lambda i: sessions[i].arrives_at)
        async with asyncio.TaskGroup() as group:
            for i in in_order:
                await self._clock.until(sessions[i].arrives_at - PREPARE_S)
                tasks[i] = group.create_task(self._play(sessions[i]))
        return [request for i in range(len(sessions)) for request in tasks[i].result()]

    async def _play(self, session: PlannedSession) -> list[SentRequest]:
        found: list[SentRequest] = []
        due_s = session.arrives_at
        for turn, request in enumerate(session.requests):
            due_s += request.think_s
            await self._clock.until(due_s - PREPARE_S)
            body = _encode(request.body())
            await self._clock.until(due_s)
            sent = await self._send(session.name, turn, request, body, due_s)
            found.append(sent)
            due_s = sent.ended_s
        return found

    async def _send(
        self, session: str, turn: int, request: PlannedRequest, body: bytes, due_s: float
    ) -> SentRequest:
        now = self._clock.now
        error, reason, status, first_byte_s = None, "", 0, None
        told: dict[str, str] = {}
        stream = TokenStream(now)
        headers = {"content-type": "application/json", **self._headers, **request.headers}
        self.sent += 1
        sent_s = now()
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.post(self._url + request.path, data=body, headers=headers) as answer,
            ):
                status = answer.status
                told = _told(answer.headers)
                if status != 200:
                    error, reason = f"http_{status}", _reason(await answer.read())
                else:
                    async for chunk in answer.content.iter_any():
                        if first_byte_s is None:
                            first_byte_s = now()
                        stream.feed(chunk)
                    stream.end()
        except TimeoutError:
            error, reason = "timeout", f"not finished within {self._timeout_s:g} s"
        except BadStream as bad:
            error, reason = bad.kind, str(bad)
        except aiohttp.ClientConnectorError as failed:
            error, reason = "connect", str(failed)
        except (aiohttp.ClientError, OSError) as failed:
            error, reason = "connection", repr(failed)
        self.ended += 1
        self.failed += error is not None
        return SentRequest(
            session,
            turn,
            due_s,
            sent_s,
            now(),
            status,
            error,
            reason[:REASON_CHARACTERS],
            first_byte_s,
            tuple(stream.token_times_s),
            stream.prompt_tokens,
            stream.output_tokens,
            _cached_tokens(stream, told),
            told,
        )


def _told(headers: Mapping[str, str]) -> dict[str, str]:
    lower = ((name.lower(), value) for name, value in headers.items())
    return {name: value for name, value in lower if name.startswith(("x-", "retry-after"))}


def _cached_tokens(stream: TokenStream, told: Mapping[str, str]) -> int | None:
    """Return cached tokens from vLLM's usage if it reports them, otherwise from Antefix's
    header."""
    if stream.cached_tokens is None and (header := told.get(CACHED_HEADER, "")).isdigit():
        return int(header)
    return stream.cached_tokens


def _reason(body: bytes) -> str:
    """Return the message of an error's body, in OpenAI's form or any other."""
    with contextlib.suppress(msgspec.MsgspecError, KeyError, TypeError):
        return str(msgspec.json.decode(body)["error"]["message"])
    return body.decode(errors="replace")
