"""The other replicas of the pool: what they report, what the index has of them, and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from deployments.engine.handover.sealed_handover import (
    HANDOVER_PATH,
    Handover,
    HandoverSeal,
    TakenOver,
)
from deployments.wire.engine_pass import EnginePasses
from router.board.load import ReplicaLoad
from router.board.load_reader import LoadReader
from router.index.cached_blocks import Tier, tier_key
from router.index.hot_prefixes import HotPrefix
from router.index.index import Depths, PrefixIndex

# Until another replica has listed its prefixes, or has pulled those that it was given.
ASK_S, GIVE_S = 5.0, 20.0


class OtherReplicas:
    """Those that pull from each other."""

    def __init__(
        self, replica_id: str, reader: LoadReader, index: PrefixIndex, engine_secret: str
    ) -> None:
        self._replica_id = replica_id
        self._reader = reader
        self._index = index
        self._passes = EnginePasses(engine_secret)
        self._seal = HandoverSeal(engine_secret)

    async def loads(self) -> list[ReplicaLoad]:
        """Return those that hand over prefixes. Raises one of REDIS_FAILURES."""
        board = self._reader.board
        if not board.is_read:
            await self._reader.read()
            await self._reader.aclose()
        known = {**board.leaving(), **board.loads(), **board.warm()}
        known.pop(self._replica_id, None)
        return [load for load in known.values() if load.peer and not (load.asleep or load.suspect)]

    async def depths(self, prefixes: Sequence[HotPrefix]) -> list[Depths]:
        """Return how many leading segments of each prefix are in the host tier of each slot, or
        closer; none if Redis does not answer."""
        try:
            keys = ([tier_key(key, Tier.HOST) for key in prefix.keys] for prefix in prefixes)
            return [await self._index.lookup(of) or {} for of in keys]
        finally:
            await self._index.aclose()

    async def ask(self, load: ReplicaLoad) -> Handover:
        """Return a replica's hot prefixes. Raises aiohttp.ClientError, TimeoutError or
        ValueError."""
        return await self.opened(await self._send("GET", load, None, ASK_S))

    async def give(self, load: ReplicaLoad, handover: Handover) -> TakenOver:
        """Return what the replica took. Raises as `ask`."""
        body = await self.sealed(handover)
        return msgspec.json.decode(await self._send("POST", load, body, GIVE_S), type=TakenOver)

    async def sealed(self, handover: Handover) -> bytes:
        return await asyncio.to_thread(self._seal.sealed, handover)

    async def opened(self, body: bytes) -> Handover:
        """Return what another replica has sealed. Raises ValueError."""
        return await asyncio.to_thread(self._seal.opened, body)

    async def _send(
        self, method: str, load: ReplicaLoad, body: bytes | None, within_s: float
    ) -> bytes:
        headers = self._passes.headers(load.url, path=HANDOVER_PATH)
        timeout = aiohttp.ClientTimeout(total=within_s)
        url = load.url + HANDOVER_PATH
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.request(method, url, data=body, headers=headers) as answer,
        ):
            if answer.status != 200:  # it leaves too, or is of another release
                raise ValueError(f"the replica answered {answer.status}")
            return await answer.read()
