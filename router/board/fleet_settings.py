"""The settings of a fleet's gateways in Redis, for engines and the autoscaler.

    key        value                                         lifetime
    settings   `GivenSettings`, JSON, signed; the highest     a day after the last
               version is the newest                          gateway

Ray Serve passes a change to running gateways as `user_config`; it would restart or reset other
processes. Each gateway writes its settings with a higher version than it found, and writes them
again when Redis has lost them. A gateway that does not have the newest yet leaves them. A reader
never returns to a lower version than it has read, so an old value that is restored in Redis has no
effect; gateways replace it within KEEP_PERIOD_S. A new version is at least the time in
milliseconds, so it is higher even if Redis has lost the previous one. Nothing here raises or makes
a request wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from common.loops import forever
from router.index.slots import REDIS_TIMEOUT_S
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.signature import Signer, count_forged, opened, signed

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


async def read_settings(
    redis: AsyncRedis, fleet: str, signer: Signer | None
) -> GivenSettings | None:
    """Return the settings; None: no gateway of the fleet has written any. `redis` decodes. Raises
    one of REDIS_FAILURES."""
    key = settings_key(fleet)
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        # MGET: a value of another type counts as missing
        [found] = await cast(Awaitable[list[str | None]], redis.mget([key]))
    text = None if found is None else opened(signer, key, found)
    try:
        return None if text is None else _settings(text)
    except (msgspec.MsgspecError, ValueError):  # written by hand
        return None


class SettingsReader:
    """Follows the settings of a fleet."""

    def __init__(self, redis: AsyncRedis, fleet: str, signer: Signer | None) -> None:
        self._redis = redis
        self._fleet = fleet
        self._signer = signer
        self._version = 0

    async def newer(self) -> GivenSettings | None:
        """Return the settings if they are newer than those of the last call that returned any.

        Raises one of REDIS_FAILURES.
        """
        found = await read_settings(self._redis, self._fleet, self._signer)
        if found is None or found.version == self._version:
            return None
        if found.version < self._version:
            count_forged(settings_key(self._fleet))
            return None
        self._version = found.version
        return found


async def forget_settings(redis: AsyncRedis, fleet: str) -> None:
    """Delete the settings of an ended fleet. Raises one of REDIS_FAILURES."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        await redis.delete(settings_key(fleet))


class SettingsWriter:
    """The writer of one gateway, for its fleet. `clock` returns Unix time in seconds."""

    def __init__(
        self,
        redis: AsyncRedis,
        fleet: str,
        signer: Signer | None,
        clock: Callable[[], float],
    ) -> None:
        self._redis = redis
        self._fleet = fleet
        self._signer = signer
        self._clock = clock
        self._given: str | None = None
        self._version = 0  # none yet
        self._changed = asyncio.Event()

    def give(self, fleet: str) -> None:
        """Set the settings; they are written soon, but not here."""
        if fleet != self._given:
            self._given, self._version = fleet, 0
            self._changed.set()

    async def read(self) -> GivenSettings | None:
        """Return the settings in Redis, from any gateway. Raises one of REDIS_FAILURES."""
        return await read_settings(self._redis, self._fleet, self._signer)

    async def run(self) -> None:
        """Keep the settings in Redis until cancelled."""
        await forever(
            "settings",
            self._keep,
            fails=f"failed to write the settings of {self._fleet}",
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
        """Write once, if it is due. Raises one of REDIS_FAILURES."""
        if (given := self._given) is None:
            return
        found = await self.read()
        version = self._version
        if found is not None and found.fleet == given:
            version = max(version, found.version)
        elif not version:
            version = max(found.version + 1 if found else 1, int(self._clock() * 1000))
        elif found is not None and found.version >= version:
            return  # another gateway has newer ones
        key = settings_key(self._fleet)
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            if found is not None and (found.version, found.fleet) == (version, given):
                await self._redis.expire(key, EXPIRE_S)
            else:
                text = msgspec.json.encode(GivenSettings(version, given)).decode()
                await self._redis.set(key, signed(self._signer, key, text), ex=EXPIRE_S)
        if given == self._given:  # otherwise other settings were given meanwhile
            self._version = version
