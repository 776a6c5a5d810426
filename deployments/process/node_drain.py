"""How a process of the fleet hears that its node is drained, and says when it has ended.

    <temporary folder>/antefix-<uid>/nodes/<Ray node id>/
        drain    who drains the node asks for it here (`deployments.node_drain`)
        <pid>    a process of the fleet: how many requests it still has; "-" before a drain

Files, so that a node is drained also while Ray's control store or Redis is away.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

PERIOD_S = 0.2
# A request that was placed just before the others heard of it is still on its way.
SETTLE_S = 2.0
ASKED = "drain"
_SERVING = "-"


async def follow(
    node_id: str, begin: Callable[[float], Awaitable[None]], requests: Callable[[], int]
) -> None:
    """Tell, until cancelled, how many requests this process has, once its node is drained.

    `begin` is called once, with the seconds that gateways are to go on.
    """
    folder = folder_of(node_id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = folder / str(os.getpid())
    try:
        write(told, _SERVING)
        while not (folder / ASKED).exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(PERIOD_S)
        await begin(float((folder / ASKED).read_text()))
        await asyncio.sleep(SETTLE_S)
        while True:
            write(told, str(requests()))
            await asyncio.sleep(PERIOD_S)
    finally:
        told.unlink(missing_ok=True)


def folder_of(node_id: str) -> Path:
    return nodes() / node_id


def nodes() -> Path:
    return Path(tempfile.gettempdir()) / f"antefix-{os.getuid()}" / "nodes"


def write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
