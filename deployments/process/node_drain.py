"""The drain of a node, as its processes see it: they read the order, and report their requests.

    <temporary folder>/antefix-<uid>/nodes/<Ray node id>/
        drain    the order to drain the node (`deployments.node_drain`)
        <pid>    a process of the fleet: its number of requests; "-" before a drain

Files work while Ray's control store or Redis is unavailable. A process that is connected to Ray
reports the drain to it: another program takes seconds to connect, or a minute if Ray is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from common.loops import forever, until_next
from common.private_folder import made_private, user_folder

logger = logging.getLogger("ray.serve")

PERIOD_S = 0.2
# How often a process checks whether its node is being drained.
LOOK_PERIOD_S = 0.5
# A request that was placed just before the others learned of the drain is still to arrive.
SETTLE_S = 2.0
ASKED = "drain"
_SERVING = "-"


async def follow(
    node_id: str, begin: Callable[[float], Awaitable[None]], requests: Callable[[], int]
) -> None:
    """Report, until cancelled, how many requests this process has, once its node is drained.

    `begin` is called once, with the seconds for which gateways continue. Ray gets the drain too, so
    that Ray Serve starts replacements on other nodes first.
    """
    step = partial(_follow, node_id, begin, requests)
    fails = f"failed to read whether node {node_id} drains"
    await forever("node_drain", step, fails=fails, logger=logger)


async def _follow(
    node_id: str, begin: Callable[[float], Awaitable[None]], requests: Callable[[], int]
) -> NoReturn:
    folder = folder_of(node_id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = folder / str(os.getpid())
    try:
        write(told, _SERVING)
        while not (folder / ASKED).exists():  # another process creates it
            # aligned with other loops: an idle process is woken once for all of them
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(until_next(LOOK_PERIOD_S, now))
        after_s, within_s = map(float, (folder / ASKED).read_text().split())
        asyncio.get_running_loop().run_in_executor(None, _tell_ray, node_id, within_s)
        settled = asyncio.get_running_loop().time() + SETTLE_S
        await begin(after_s)
        await asyncio.sleep(settled - asyncio.get_running_loop().time())
        while True:
            write(told, str(requests()))
            await asyncio.sleep(PERIOD_S)
    finally:
        told.unlink(missing_ok=True)


def ask(folder: Path, after_s: float, within_s: float) -> None:
    """Order the processes of a node's folder to leave: `follow` reads it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write(folder / ASKED, f"{after_s} {within_s}")


def _tell_ray(node_id: str, within_s: float) -> None:
    """Report the drain to Ray, if it answers. Otherwise Ray Serve replaces the replicas when they
    are gone."""
    # not at the top: a process that requests a drain does not need Ray, and must not wait for its
    # import
    import ray
    from ray._private.worker import global_worker
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

    if not ray.is_initialized():
        return
    ends_ms = int((time.time() + within_s) * 1000)
    try:
        gcs = global_worker.gcs_client  # type: ignore[attr-defined]
        reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        gcs.drain_node(node_id, reason, "the pod ends", ends_ms)
    except Exception:
        logger.exception("failed to report the drain of node %s to Ray", node_id)


def folder_of(node_id: str) -> Path:
    return nodes() / node_id


def nodes() -> Path:
    """Return the folder of nodes. Raises OSError if it is not private to this user."""
    return made_private(user_folder()) / "nodes"


def write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
