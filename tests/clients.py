"""Clients of a fleet whose gateways come and go, and how their requests end."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import aiohttp

from deployments.gateway.attempt.sockets import impatient_socket

REQUEST_SECONDS = 90.0
# What a stream ends with whose engine was lost.
LOST = ("engine_unavailable", "engines_lost")


@dataclass(frozen=True)
class Outcome:
    """How one request that entered at a gateway ended; times are of time.monotonic()."""

    entered_at: str
    kind: str  # whole, cut, broken, hung, or the error's code
    replica: str
    began: float
    ended: float
    request_id: str = ""


async def one_request(
    http: aiohttp.ClientSession,
    headers: dict[str, str],
    gateway: str,
    model: str,
    stream: bool = True,
    tokens: int = 8,
) -> Outcome:
    """Raises ClientConnectionError when the gateway is gone; any other end is an outcome."""
    began = time.monotonic()
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about the number {began}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    kind, replica, request_id = "hung", "", ""
    try:
        url = f"{gateway}/v1/chat/completions"
        async with http.post(url, json=body, headers=headers) as answer:
            replica = answer.headers.get("x-antefix-replica", "")
            request_id = answer.headers.get("x-request-id", "")
            text = (await answer.read()).decode()
        if answer.status != 200:
            kind = str(json.loads(text)["error"]["code"])
        elif not stream or text.rstrip().endswith("[DONE]"):
            kind = "whole"
        else:
            last = json.loads(text.rstrip().rpartition("data: ")[2])
            code = last.get("error", {}).get("code", "broken")
            kind = "cut" if code in LOST else code
    except TimeoutError:
        if time.monotonic() - began < REQUEST_SECONDS:
            raise  # the connection was not made: the gateway is gone
    return Outcome(gateway, kind, replica, began, time.monotonic(), request_id)


class Service:
    """Clients behind a load balancer, which asks each gateway whether it is serving.

    They keep their connections, as real ones do, and pause for `pause_s` after each answer.
    """

    def __init__(
        self,
        headers: dict[str, str],
        gateways: list[str],
        model: str,
        clients: int = 4,
        pause_s: float = 0.0,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.errors: list[str] = []
        self.serving: list[str] = []
        self.stop = False
        self._headers = headers
        self._gateways = gateways
        self._model = model
        self._clients = clients
        self._pause_s = pause_s

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=impatient_socket),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS + 5, sock_connect=2),
        ) as http:
            await self._probe(http)
            clients = (
                self._client(http, number, tokens=(8, 80)[number // 2 % 2])
                for number in range(self._clients)
            )
            await asyncio.gather(self._probes(http), *clients)

    async def _probes(self, http: aiohttp.ClientSession) -> None:
        while not self.stop:
            await self._probe(http)
            await asyncio.sleep(0.5)

    async def _probe(self, http: aiohttp.ClientSession) -> None:
        found = []
        for gateway in self._gateways:
            try:
                async with http.get(f"{gateway}/health/serving") as answer:
                    found += [gateway] if answer.status == 200 else []
            except (aiohttp.ClientError, TimeoutError):
                continue
        # where none answers in time, a load balancer keeps to those that served last
        self.serving = found or self.serving or self._gateways

    async def _client(self, http: aiohttp.ClientSession, number: int, tokens: int) -> None:
        while not self.stop:
            gateway = self.serving[number % len(self.serving)]
            try:
                outcome = await one_request(
                    http, self._headers, gateway, self._model, tokens=tokens
                )
                self.outcomes.append(outcome)
            except (aiohttp.ClientError, TimeoutError) as error:
                self.errors.append(f"{gateway}: {error!r}")
            await asyncio.sleep(self._pause_s)
