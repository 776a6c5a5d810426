"""Clients of a fleet under chaos tests, and how each of their requests ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import aiohttp

from cli.stream_client import Endpoint
from deployments.gateway.answer.resuming import CLIENT_EVENTS_HEADER, RESUME_HEADER

CLIENTS = 4
PROMPTS = 6
LONG_TOKENS, SHORT_TOKENS = 48, 8
# A longer answer has hung.
HUNG_S = 150.0
# How often a client may resume one stream.
MOST_RESUMED = 5


@dataclass
class Asked:
    """One request, in seconds of the loop's clock. `code`: of its error, or how its connection
    ended; None for a whole answer. `replica`: empty where no answer began. `resumed`: how often
    another gateway sent the rest."""

    began: float
    ended: float = 0.0
    replica: str = ""
    code: str | None = None
    first_byte: float | None = None
    longest_gap_s: float = 0.0
    resumed: int = 0

    def overlaps(self, began: float, ended: float) -> bool:
        return self.began < ended and self.ended > began


class Traffic:
    """`clients` that send one request after the other, each over a new connection: streams and
    whole answers, long and short."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint = endpoint
        self._model = model
        self._numbers = count()
        self.outcomes: list[Asked] = []

    @contextlib.asynccontextmanager
    async def clients(self, number: int = CLIENTS) -> AsyncIterator[None]:
        """They finish their last request."""
        ends = asyncio.Event()

        async def client() -> None:
            while not ends.is_set():
                await self.ask()

        asking = [asyncio.create_task(client()) for _ in range(number)]
        try:
            yield
        finally:
            ends.set()
            await asyncio.gather(*asking)

    async def ask(self) -> Asked:
        """One request, with its outcome."""
        outcome = Asked(_now())
        connector = aiohttp.TCPConnector(force_close=True)
        headers = self.endpoint.headers
        try:
            async with (
                asyncio.timeout(HUNG_S),
                aiohttp.ClientSession(connector=connector, headers=headers) as http,
            ):
                await self._ask(http, outcome, next(self._numbers))
        except TimeoutError:
            outcome.code = "hung"
        except (aiohttp.ClientError, OSError) as error:
            outcome.code = f"cut ({type(error).__name__})"
        outcome.ended = _now()
        self.outcomes.append(outcome)
        return outcome

    async def _ask(self, http: aiohttp.ClientSession, outcome: Asked, number: int) -> None:
        streams = number % 3 != 0
        body = {
            "model": self._model,
            "prompt": f"Number {number % PROMPTS}. " + "Tell me of the harbour. " * 30,
            "max_tokens": LONG_TOKENS if number % 2 else SHORT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": streams,
            "return_token_ids": streams,
        }
        stream = Stream(outcome, LONG_TOKENS if number % 2 else SHORT_TOKENS)
        while True:
            try:
                url = f"{self.endpoint.url}/v1/completions"
                async with http.post(url, json=body, headers=stream.rest) as answer:
                    outcome.replica = answer.headers.get("x-antefix-replica", outcome.replica)
                    if answer.status != 200:
                        outcome.code = _code(await answer.read())
                    elif streams:
                        outcome.code = await stream.read(answer)
                    else:
                        await answer.read()
                    return
            except aiohttp.ClientError:
                if not stream.rest or outcome.resumed == MOST_RESUMED:
                    raise
                outcome.resumed += 1


class Stream:
    """What a client has of a stream. `rest`: headers that ask for the rest of it."""

    def __init__(self, outcome: Asked, tokens: int) -> None:
        self._outcome = outcome
        self._tokens = tokens
        self._last = outcome.began
        self._events: list[bytes] = []
        self.rest: dict[str, str] = {}

    async def read(self, answer: aiohttp.ClientResponse) -> str | None:
        """Read until it ends. The code of its error, if any."""
        begun, outcome = b"", self._outcome
        if stream_id := answer.headers.get(RESUME_HEADER):
            self.rest = {RESUME_HEADER: stream_id, CLIENT_EVENTS_HEADER: str(len(self._events))}
        async for chunk in answer.content.iter_any():
            now = _now()
            if outcome.first_byte is None:
                outcome.first_byte = now
            else:
                outcome.longest_gap_s = max(outcome.longest_gap_s, now - self._last)
            self._last = now
            *events, begun = (begun + chunk).split(b"\n\n")
            self._events += [event for event in events if event[:1] != b":"]
            if self.rest:
                self.rest[CLIENT_EVENTS_HEADER] = str(len(self._events))
        if not self._events or self._events[-1] != b"data: [DONE]":
            return _code((self._events or [b""])[-1].removeprefix(b"data: "))
        choices = [json.loads(event[len(b"data: ") :])["choices"][0] for event in self._events[:-1]]
        tokens = sum(len(choice["token_ids"]) for choice in choices)
        return None if tokens == self._tokens else f"{tokens} tokens for {self._tokens}"


def _code(body: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said: dict[str, Any] = json.loads(body)
        return str(said["error"]["code"])
    return "no error of ours"


def _now() -> float:
    return asyncio.get_running_loop().time()
