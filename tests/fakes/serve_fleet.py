"""A fleet in a real Ray Serve whose engines are fakes: real gateways, autoscaler, Redis.

`config_of` is what the chart gives to KubeRay, but for the engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from ray import serve

from deployments import app
from deployments.engine.replica import EngineReplica
from deployments.engine.serve_places import ServePlaces
from deployments.fleet.applications import serve_config
from deployments.fleet.fleet import MetricsSettings
from deployments.fleet.pool import Pool
from router.load import LoadBoard
from router.load_reader import LoadReader
from router.redis_client import connect
from tests.fakes.engine import FakeEngine
from tests.fakes.publishing import Publishing

# A pool's `env` says with it how long a start of its engines takes.
STARTUP_S = "FAKE_STARTUP_S"


class FakeReplica(EngineReplica):
    """Follows the settings of the fleet as an engine does; `facts` says what it knows."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, board: str, pool: Pool, secret: str, redis_url: str, metrics: MetricsSettings
    ) -> None:
        startup_s = float(os.environ.get(STARTUP_S, "0"))
        await asyncio.sleep(startup_s)
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._fake = FakeEngine(
            replica_id,
            pool.max_ongoing_requests,
            model=pool.served_model_name,
            places=ServePlaces.here(),
        )
        self._fake.startup_s = startup_s
        await self._fake.start()
        self._published = Publishing(self._fake, redis_url, board)
        self._published.start()
        redis = connect(redis_url)
        self._board_reader = LoadReader(redis, board, LoadBoard(lambda: 0.0), pool.is_scaled)
        self._settings = asyncio.create_task(self._follow_settings(redis, board))

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"url": self._fake.url}

    async def hold(self, ticket: str) -> None:
        await self._fake.tickets.hold(ticket)

    async def facts(self) -> dict[str, Any]:
        """Of this process: what has reached it."""
        return {
            "pid": os.getpid(),
            "log_level": logging.getLogger("router").level,
            "scaled": self._board_reader.scaled,
        }

    async def check_health(self) -> None:
        pass

    async def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # Serve calls this on a failed __init__ too
            self._settings.cancel()
            await self._published.stop()
            await self._fake.stop()


def build_pool(args: Mapping[str, Any]) -> serve.Application:
    with patch.object(app, "EngineReplica", FakeReplica):
        return app.build_pool(args)


def config_of(fleet: Mapping[str, Any]) -> dict[str, Any]:
    """For Ray Serve, as KubeRay hands it on."""
    config = serve_config(fleet)
    for application in config["applications"][1:]:
        application["import_path"] = "tests.fakes.serve_fleet:build_pool"
    return config
