"""Mixed traffic: what a fleet meets in a year, in random order, a few requests a second.

Streams and whole answers, clients that leave before, while and after they are served, rejected
bodies, changing keys, and status requests. The prompts are a bounded set, larger than the engines'
caches, so that blocks are stored and evicted all the time.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

PROMPTS = 200
TENANTS = 12
# Words of a prompt: a few KV blocks, and less than one.
LONG, SHORT = 90, 15
# A request that takes longer has hung.
HUNG_S = 120.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LOOKS = ("/v1/models", "/antefix/status", "/antefix/decisions?limit=5", "/antefix/requests/none")


class MixedTraffic:
    """`ask` sends one request of any kind. `told`: how often each status came; 0 for an interrupted
    answer, `hung` after HUNG_S."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        root: str,
        model: str,
        operator_key: str,
        write_keys: Callable[[dict[str, str]], None],
        seed: int = 1,
    ) -> None:
        self._http = http
        self._root = root
        self._model = model
        self._operator_key = operator_key
        self._write_keys = write_keys
        self._chance = random.Random(seed)
        self._prompts = [
            self._words(LONG if number % 2 else SHORT, f"seed {number}")
            for number in range(PROMPTS)
        ]
        self._keys = {operator_key: "default"}
        self._turn = 0
        self.told: Counter[int | str] = Counter()
        kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self._streams),
            (6, self._whole),
            (2, self._leaves_a_stream),
            (1, self._leaves_early),
            (1, self._leaves_half_a_body),
            (3, self._is_refused),
            (1, self._has_no_time),
            (1, self._looks),
        ]
        self._kinds = [kind for times, kind in kinds for _ in range(times)]

    def change_keys(self) -> None:
        """Every second tenant gets a new key, and the others lose theirs, in turns."""
        self._turn += 1
        having = range(self._turn % 2, TENANTS, 2)
        made = {f"sk-soak-{secrets.token_hex(16)}": f"tenant-{number}" for number in having}
        self._write_keys(made)
        self._keys = {self._operator_key: "default", **made}

    async def ask(self) -> None:
        """One request. Counts its outcome."""
        await self._whatever_comes(self._chance.choice(self._kinds))

    async def burst(self, requests: int) -> None:
        """More streams at once than are admitted."""
        await asyncio.gather(*(self._whatever_comes(self._streams) for _ in range(requests)))

    async def _whatever_comes(self, kind: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(HUNG_S):
                await kind()
        except TimeoutError:
            self.told["hung"] += 1
        except (aiohttp.ClientError, OSError):
            self.told[0] += 1

    async def _streams(self) -> None:
        await self._post(*self._request(stream=True))

    async def _whole(self) -> None:
        await self._post(*self._request(n=self._chance.choice((1, 1, 2))))

    async def _leaves_a_stream(self) -> None:
        path, body = self._request(stream=True, max_tokens=200, ignore_eos=True)
        async with self._sent(path, body) as answer:
            self.told[answer.status] += 1
            await answer.content.readany()
            answer.close()

    async def _leaves_early(self) -> None:
        """Before its answer begins, while the request waits, is placed or is computed."""
        path, body = self._request(max_tokens=200, ignore_eos=True)
        try:
            async with asyncio.timeout(self._chance.uniform(0.0, 0.5)):
                await self._post(path, body)
        except TimeoutError:
            self.told["left"] += 1

    async def _leaves_half_a_body(self) -> None:
        path, body = self._request()
        at, content = urlsplit(self._root), json.dumps(body).encode()
        _, writer = await asyncio.open_connection(at.hostname, at.port)
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: {at.netloc}",
            "content-type: application/json",
            f"content-length: {len(content)}",
            f"authorization: {self._headers()['authorization']}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content[: len(content) // 2])
        await writer.drain()
        await asyncio.sleep(self._chance.uniform(0.0, 0.2))
        writer.transport.abort()
        self.told["left"] += 1

    async def _is_refused(self) -> None:
        path, body = self._request()
        wrong: Sequence[dict[str, Any]] = (
            {"model": f"no-{self._chance.randrange(10**6)}"},
            {"temperature": "hot"},
            {"max_tokens": 0},
            {"n": 10**6},
            {"no_such_field": {"a": [1] * 100}},
            {"messages" if path == CHAT else "prompt": []},
        )
        await self._post(path, {**body, **self._chance.choice(wrong)})

    async def _has_no_time(self) -> None:
        path, body = self._request()
        await self._post(path, body, {"x-antefix-timeout": "0.05"})

    async def _looks(self) -> None:
        path = self._chance.choice(LOOKS)
        async with self._http.get(self._root + path, headers=self._headers()) as answer:
            await answer.read()
            self.told[answer.status] += 1

    async def _post(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        async with self._sent(path, body, headers) as answer:
            await answer.read()
            self.told[answer.status] += 1

    def _sent(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        headers = {**self._headers(), **(headers or {})}
        return self._http.post(self._root + path, json=body, headers=headers)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._chance.choice(list(self._keys))}"}

    def _request(self, **more: Any) -> tuple[str, dict[str, Any]]:
        prompt = self._chance.choice(self._prompts)
        path = self._chance.choice((CHAT, COMPLETIONS))
        body = {"model": self._model, "max_tokens": self._chance.randint(1, 12), **more}
        if path == COMPLETIONS:
            return path, {**body, "prompt": prompt}
        return path, {**body, "messages": [{"role": "user", "content": prompt}]}

    @staticmethod
    def _words(count: int, seed: str) -> str:
        chance = random.Random(seed)
        return " ".join(f"{chance.choice('bcdfgh')}{chance.randrange(1000)}" for _ in range(count))
