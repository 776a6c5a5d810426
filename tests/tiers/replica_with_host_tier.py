"""A replica with a host tier, until it is killed: python -m tests.tiers.replica_with_host_tier

Takes {"model", "host_bytes"} as JSON on stdin. Writes one line of JSON:

    url        of the engine
    processes  their ids; the first is the replica's own
    mapped     the files in /dev/shm that they have mapped
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil

from deployments.engine.vllm.adapter import VllmEngine
from tests.served import at_a_url, stdout_for_the_test
from tests.tiers.host_tier import ENGINE_ARGS


def shared_memory(pid: int) -> list[str]:
    """The files, with (deleted) after those that have no name any more."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    found = {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}
    return sorted(found)


async def serve(asked: dict[str, Any], said: Any) -> None:
    tiers = {"host_bytes": asked["host_bytes"], "eviction": "lru"}
    engine = await VllmEngine.start(asked["model"], "model", ENGINE_ARGS, kv_tiers=tiers)
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    pids = [os.getpid(), *children]
    mapped = [name for pid in pids for name in shared_memory(pid)]
    async with at_a_url(engine) as url:
        told = {"url": url, "processes": pids, "mapped": mapped}
        print(json.dumps(told), file=said, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    answers = stdout_for_the_test()
    asyncio.run(serve(json.load(sys.stdin), answers))
