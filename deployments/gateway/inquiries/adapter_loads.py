"""Makes a replica fetch and load a LoRA adapter (`deployments.engine.adapters.loaded_adapters`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import aiohttp

from deployments.gateway.api.operator_codes import ADAPTER_NOT_LOADED, UNUSABLE_ADAPTER
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.lora_adapter import ADAPTER_PATH, Adapter

# Enough to download some hundred megabytes, after the engine's current steps.
LOAD_TIMEOUT_S = 600.0


class FetchedAdapter(NamedTuple):
    """An adapter that a replica has loaded. `size`: bytes of its files."""

    adapter: Adapter
    rank: int
    size: int


class AdapterLoads:
    """Sends load requests to replicas, with the fleet's secret."""

    def __init__(self, session: aiohttp.ClientSession, engine_secret: str) -> None:
        self._session = session
        self._passes = EnginePasses(engine_secret)

    async def fetch(self, urls: Iterable[str], name: str, source: str) -> FetchedAdapter:
        """Make the first replica of `urls` that answers load an adapter.

        Raises ApiError: 400 if the replica rejects the adapter, 502 if no replica answers within
        LOAD_TIMEOUT_S in total.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                for url in urls:
                    with suppress(aiohttp.ClientError, OSError, ValueError, TypeError, KeyError):
                        return await self._fetch(url, name, source)
        message = (
            "No engine loaded the adapter. See the logs of the engines for the reasons, then load"
            " the adapter again."
        )
        raise ApiError(ADAPTER_NOT_LOADED, message)

    async def _fetch(self, url: str, name: str, source: str) -> FetchedAdapter:
        response = self._session.post(
            url + ADAPTER_PATH,
            json={"name": name, "source": source},
            headers=self._passes.headers(url, path=ADAPTER_PATH),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with response as answer:
            body = await answer.json()
            if answer.status != 200:
                message = body["error"]["message"]
                raise ApiError(UNUSABLE_ADAPTER, message, param="lora_path")
            adapter = Adapter(body["name"], body["digest"], body["source"])
            return FetchedAdapter(adapter, body["rank"], body["bytes"])
