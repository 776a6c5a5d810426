"""What a fleet's gateways run with, in Redis, for engines and the autoscaler.

    key        value                                         lifetime
    settings   `GivenSettings`, JSON; the highest version     a day after the last
               is the newest                                  gateway

Ray Serve tells running gateways of a change, and would restart or reset what it told of one
otherwise. Each gateway writes what it was given, with a higher version than it found, and writes
it again when Redis has lost it; one that was not given the newest yet leaves it. Nothing here
raises or makes a request wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import cast

import msgspec

from common.loops import forever
from router import redis_keys
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.slots import REDIS_TIMEOUT_S

logger = logging.getLogger(__name__)

KEEP_PERIOD_S = 2.0
EXPIRE_S = 86400


class GivenSettings(msgspec.Struct, frozen=True):
    """`fleet`: JSON, as text."""

    version: int
    fleet: str


_settings = msgspec.json.Decoder(GivenSettings).decode


def settings_key(fleet: str) -> str:
    return redis_keys.key(fleet, "settings")


async def read_settings(redis: AsyncRedis, fleet: str) -> GivenSettings | None:
    """None: no gateway has written any. `redis` decodes. Raises one of REDIS_FAILURES."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        text = cast("str | None", await redis.get(settings_key(fleet)))
    try:
        return None if text is None else _settings(text)
    except msgspec.MsgspecError:  # by another release
        return None


async def forget_settings(redis: AsyncRedis, fleet: str) -> None:
    """Those of a fleet that has ended. Raises one of REDIS_FAILURES."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        await redis.delete(settings_key(fleet))


class SettingsWriter:
    """One gateway's, for its fleet."""

    def __init__(self, redis: AsyncRedis, fleet: str) -> None:
        self._redis = redis
        self._fleet = fleet
        self._given: str | None = None
        self._version = 0  # none yet
        self._changed = asyncio.Event()

    def give(self, fleet: str) -> None:
        """These are the settings from now on; written at once, but not here."""
        if fleet != self._given:
            self._given, self._version = fleet, 0
            self._changed.set()

    async def run(self) -> None:
        """Keep what was given in Redis until cancelled."""
        await forever(
            "settings",
            self._keep,
            fails=f"settings of {self._fleet} not written",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def _keep(self) -> None:
        self._changed.clear()
        await self.write()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_PERIOD_S):
                await self._changed.wait()

    async def write(self) -> None:
        """Once, where that is due. Raises one of REDIS_FAILURES."""
        if (given := self._given) is None:
            return
        found = await read_settings(self._redis, self._fleet)
        version = self._version
        if found is not None and found.fleet == given:
            version = max(version, found.version)
        elif not version:
            version = found.version + 1 if found else 1
        elif found is not None and found.version >= version:
            return  # another gateway has newer ones
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            if found is not None and (found.version, found.fleet) == (version, given):
                await self._redis.expire(settings_key(self._fleet), EXPIRE_S)
            else:
                text = msgspec.json.encode(GivenSettings(version, given)).decode()
                await self._redis.set(settings_key(self._fleet), text, ex=EXPIRE_S)
        if given == self._given:  # else others were given meanwhile
            self._version = version
