"""A fleet in a real Ray Serve whose engines are fakes: real gateways, autoscaler, Redis.

`config_of` is what the chart gives to KubeRay, except the engines.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ray import serve

from common.loops import Loops
from deployments import app
from deployments.engine.replica import PUBLISHED_WITHIN_S, EngineReplica
from deployments.engine.serving.serve_places import ServePlaces
from deployments.engine.serving.snapshots import ReplicaState
from deployments.fleet.applications import serve_config
from deployments.fleet.fleet import MetricsSettings
from deployments.fleet.pool import Pool
from router.board.fleet_settings import SettingsReader
from router.board.load import LoadBoard
from router.board.load_reader import LoadReader
from router.redis.redis_client import connect
from router.redis.redis_keys import BoardName
from router.redis.signature import Signer
from tests.fakes.engine import FakeEngine
from tests.fakes.publishing import Publishing

# A pool's `env` says with them how long a start of its engines takes, and each token.
STARTUP_S, TOKEN_S = "FAKE_STARTUP_S", "FAKE_TOKEN_S"
LOOK_PERIOD_S = 0.05


class _Nothing:
    """A stand-in for each part that a real replica stops or closes."""

    def stop(self) -> None:
        pass

    close = stop


class FakeReplica(EngineReplica):
    """Follows the settings of the fleet, and is removed, as a real one; `facts` says what it
    knows."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, board: BoardName, pool: Pool, secret: str, redis_url: str, metrics: MetricsSettings
    ) -> None:
        startup_s = float(os.environ.get(STARTUP_S, "0"))
        await asyncio.sleep(startup_s)
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._places = ServePlaces.here()
        self._fake = FakeEngine(
            replica_id,
            pool.max_ongoing_requests,
            model=pool.served_model_name,
            places=self._places,
        )
        self._fake.startup_s = startup_s
        self._fake.token_delay_s = float(os.environ.get(TOKEN_S, "0"))
        await self._fake.start()
        publisher, redis, loops = (
            Publishing(self._fake, redis_url, board),
            connect(redis_url),
            Loops(),
        )
        publisher.start()
        self.parts = SimpleNamespace(  # type: ignore[assignment]
            url=self._fake.url,
            state=ReplicaState(),
            tickets=self._fake.tickets,
            server=self._fake.server,
            publisher=publisher,
            board_reader=LoadReader(redis, board, LoadBoard(lambda: 0.0), pool.is_scaled),
            settings=SettingsReader(redis, board.fleet_board, Signer(secret)),
            loops=loops,
            **dict.fromkeys(("witness", "events", "engine"), _Nothing()),
        )
        loops.start("settings", self.follow_settings(board.pool))
        loops.start("tell", self._tell())
        self._watch = loops.start("watch", self._look())

    async def _look(self) -> None:
        state = self.parts.state
        while True:
            assert self._places is not None
            state.leaving = state.leaving or self._places.is_stopping
            await asyncio.sleep(LOOK_PERIOD_S)

    async def _tell(self) -> None:
        while True:
            state = self.parts.state
            self._fake.leaving, self._fake.closed = state.leaving, state.closed
            await asyncio.sleep(LOOK_PERIOD_S)

    async def facts(self) -> dict[str, Any]:
        """Return what has reached this process."""
        return {
            "pid": os.getpid(),
            "log_level": logging.getLogger("router").level,
            "scaled": self.parts.board_reader.scaled,
        }

    async def check_health(self) -> None:
        # as the real one: Ray Serve counts on no replica that gateways cannot know yet
        await asyncio.wait_for(self.parts.publisher.published.wait(), PUBLISHED_WITHIN_S)


def build_pool(args: Mapping[str, Any]) -> serve.Application:
    with patch.object(app, "EngineReplica", FakeReplica):
        return app.build_pool(args)


def config_of(fleet: Mapping[str, Any]) -> dict[str, Any]:
    """For Ray Serve, as KubeRay hands it on."""
    config = serve_config(fleet)
    for application in config["applications"][1:]:
        application["import_path"] = "tests.fakes.serve_fleet:build_pool"
    return config
