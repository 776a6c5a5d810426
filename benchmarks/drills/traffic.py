"""Clients of a fleet under chaos tests, and how each of their requests ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count

from benchmarks.harness.load.client_answers import ClientAnswer, ask, now
from cli.gateway.stream_client import Endpoint

CLIENTS = 4
PROMPTS = 6
LONG_TOKENS, SHORT_TOKENS = 48, 8
# A longer answer has hung.
HUNG_S = 150.0


class Traffic:
    """`clients` that send one request after the other, each over a new connection: streams and
    whole answers, long and short."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint = endpoint
        self._model = model
        self._numbers = count()
        self.outcomes: list[ClientAnswer] = []

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

    async def ask(self) -> ClientAnswer:
        """One request, with its outcome."""
        outcome = ClientAnswer(now())
        number = next(self._numbers)
        streams, tokens = number % 3 != 0, LONG_TOKENS if number % 2 else SHORT_TOKENS
        body = {
            "model": self._model,
            "prompt": f"Number {number % PROMPTS}. " + "Tell me of the harbour. " * 30,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": streams,
            "return_token_ids": streams,
        }
        await ask(outcome, self.endpoint, "/v1/completions", body, HUNG_S)
        if streams and outcome.code is None and len(outcome.token_ids.get(0, ())) != tokens:
            outcome.code = f"{len(outcome.token_ids.get(0, ()))} tokens for {tokens}"
        self.outcomes.append(outcome)
        return outcome


def is_cut(outcome: ClientAnswer) -> bool:
    """Whether its connection broke, or none was made."""
    return (outcome.code or "").startswith("cut")
