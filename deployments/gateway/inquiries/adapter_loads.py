"""Asks a replica to fetch and load a LoRA adapter (`deployments.engine.adapters`)."""

from __future__ import annotations

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

    async def fetch(self, url: str, name: str, source: str) -> FetchedAdapter:
        """Have the replica at `url` load an adapter. Raises ApiError where it cannot be served, or
        where the engine does not answer."""
        asked = self._session.post(
            url + ADAPTER_PATH,
            json={"name": name, "source": source},
            headers=self._passes.headers(url, path=ADAPTER_PATH),
            timeout=aiohttp.ClientTimeout(total=LOAD_TIMEOUT_S),
        )
        try:
            async with asked as answer:
                found = await answer.json()
                if answer.status != 200:
                    raise ApiError(
                        400,
                        found["error"]["message"],
                        code="unusable_adapter",
                        param="lora_path",
                    )
                adapter = Adapter(found["name"], found["digest"], found["source"])
                return FetchedAdapter(adapter, found["rank"], found["bytes"])
        except (aiohttp.ClientError, OSError, ValueError, TypeError, KeyError, TimeoutError):
            message = (
                "The engine did not load the adapter. Try again; the log of its replica says more."
            )
            raise ApiError(502, message, code="adapter_not_loaded", headers=NO_RETRY) from None
