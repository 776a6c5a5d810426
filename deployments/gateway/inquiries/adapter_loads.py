"""Asks a replica to fetch and load a LoRA adapter (`deployments.engine.adapters`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import aiohttp

from deployments.gateway.intake.errors import NO_RETRY, ApiError
from deployments.wire.adapter import ADAPTER_PATH, Adapter
from deployments.wire.engine_pass import EnginePasses

# A download of some hundred megabytes, and the engine's steps before it.
LOAD_TIMEOUT_S = 600.0


class FetchedAdapter(NamedTuple):
    """`size`: bytes of its files."""

    adapter: Adapter
    rank: int
    size: int


class AdapterLoads:
    def __init__(self, session: aiohttp.ClientSession, engine_secret: str) -> None:
        self._session = session
        self._passes = EnginePasses(engine_secret)

    async def fetch(self, urls: Iterable[str], name: str, source: str) -> FetchedAdapter:
        """Have the first replica of `urls` that answers load an adapter. Raises ApiError where it
        cannot be served, or where none answers within LOAD_TIMEOUT_S in all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                for url in urls:
                    with suppress(aiohttp.ClientError, OSError, ValueError, TypeError, KeyError):
                        return await self._fetch(url, name, source)
        message = "No engine loaded the adapter. Try again; the logs of the replicas say more."
        raise ApiError(502, message, code="adapter_not_loaded", headers=NO_RETRY)

    async def _fetch(self, url: str, name: str, source: str) -> FetchedAdapter:
        asked = self._session.post(
            url + ADAPTER_PATH,
            json={"name": name, "source": source},
            headers=self._passes.headers(url, path=ADAPTER_PATH),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with asked as answer:
            found = await answer.json()
            if answer.status != 200:
                message = found["error"]["message"]
                raise ApiError(400, message, code="unusable_adapter", param="lora_path")
            adapter = Adapter(found["name"], found["digest"], found["source"])
            return FetchedAdapter(adapter, found["rank"], found["bytes"])
