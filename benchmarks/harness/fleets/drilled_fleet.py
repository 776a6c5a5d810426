"""The fleet of a chaos test: its processes and its status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import redis
import yaml

from benchmarks.harness.fleets.fleet import BenchFleet
from benchmarks.harness.fleets.fleet_state import held_for_requests
from cli.local import processes
from cli.local.home import Home
from deployments.fleet.applications import GATEWAYS_APPLICATION, application_of
from deployments.fleet.fleet_file import load_fleet
from router.redis.signature import Signer

GATEWAYS = 2
WITHIN_S = 150.0


class NotWithin(Exception):
    """The fleet did not reach an expected state in time."""


class DrilledFleet:
    """`client` is connected to its Redis."""

    def __init__(self, fleet: BenchFleet) -> None:
        state = Home(fleet.home).state()
        assert state is not None
        self._fleet = fleet
        self._file = Path(state.fleet_file)
        self._run_id = state.run_id
        self.home = fleet.home
        self.redis_url = state.redis_url
        description = load_fleet(state.fleet_file, check_engine_args=False)
        secret = Home(fleet.home).keys().engine_secret
        self.description, self.signer = description.with_secret(secret), Signer(secret)
        self.client = redis.Redis.from_url(state.redis_url, socket_timeout=5)

    def gateways(self) -> list[psutil.Process]:
        return self._titled(f"ServeReplica:{GATEWAYS_APPLICATION}:")

    def replicas(self, pool: str) -> list[psutil.Process]:
        """The actors; their children are vLLM's processes."""
        return self._titled(f"ServeReplica:{application_of(pool)}:")

    def controller(self) -> psutil.Process:
        (found,) = self._titled("ServeController")
        return found

    def redis_server(self) -> psutil.Process | None:
        return next(iter(self._titled("redis-server")), None)

    async def status(self) -> dict[str, Any]:
        """Return the status of each pool. Raises OSError and ValueError."""
        return await asyncio.to_thread(self._fleet.pools)

    async def id_of(self, replica: psutil.Process, pool: str) -> str:
        """The id in answers of the replica that listens where this process does."""
        ports = {at.laddr.port for at in replica.net_connections("tcp") if at.status == "LISTEN"}
        for told in (await self.status())[pool]["replicas"]:
            if int(told["url"].rpartition(":")[2]) in ports:
                return str(told["replica"])
        raise NotWithin(f"process {replica.pid} listens at the address of no replica")

    async def roles(self, pool: str) -> dict[str, str]:
        """Return the role of each replica: active, warm or leaving."""
        told = (await self.status())[pool]["replicas"]
        return {replica["replica"]: replica["role"] for replica in told}

    def update(self, pool: str, **fields: Any) -> None:
        """`antefix update`, with these fields in the pool. Raises CalledProcessError."""
        fleet = yaml.safe_load(self._file.read_text())
        fleet["pools"][pool] |= fields
        self._file.write_text(yaml.safe_dump(fleet))
        subprocess.run(
            [sys.executable, "-m", "cli.main", "update", str(self._file), "-o", "json"],
            env={**os.environ, "ANTEFIX_HOME": str(self.home)},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    async def is_whole(self) -> bool:
        """All wanted processes run, and the gateways know all replicas."""
        pools = await self.status()
        return len(self.gateways()) == GATEWAYS and all(
            pool["states"] == {"RUNNING": pool["target_replicas"]}
            and len(pool["replicas"]) == pool["target_replicas"]
            and all(replica["synced"] for replica in pool["replicas"])
            for pool in pools.values()
        )

    async def left_over(self) -> dict[str, int]:
        """What Redis and the engines still hold for requests, none of which is in progress."""
        held: dict[str, int] = {}

        async def nothing() -> bool:
            nonlocal held
            held = await asyncio.to_thread(held_for_requests, await self.status(), self.client)
            return not any(held.values())

        with contextlib.suppress(NotWithin):
            await eventually("nothing is held", nothing, within_s=60)
        return held

    def _titled(self, title: str) -> list[psutil.Process]:
        found = processes.processes(self._run_id)
        return [process for process in found if title in " ".join(_words(process))]


def engine_core_of(replica: psutil.Process) -> psutil.Process:
    return next(p for p in replica.children(recursive=True) if "EngineCore" in " ".join(_words(p)))


async def eventually(
    what: str, truth: Callable[[], Awaitable[bool]], within_s: float = WITHIN_S
) -> None:
    """Raises NotWithin."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                if await _asked(truth):
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise NotWithin(f"{what}: not within {within_s:g} s") from None


async def _asked(truth: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await truth()
    except (OSError, redis.RedisError, ValueError, KeyError):
        return False  # the fault hit the process that was asked


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
