"""A real engine with tiers, without the rest of a replica.

    python -m benchmarks.tiers.bare_engine

Takes {"model", "engine_args", "kv_tiers", "names_key"} as a line of JSON on stdin. Writes a line of
JSON when it serves, and ends when stdin does:

    url   of its API
    peer  the address at which others pull from it; empty if they do not
    core  the id of the process with the model
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import psutil
import uvloop

from benchmarks.tiers.tiered_fleet import MODEL
from cli.local.ports import LOOPBACK
from deployments.engine.serving.confirming import Confirming
from deployments.engine.vllm.adapter import VllmEngine
from deployments.process.http_server import HttpServer
from router.board.load import LoadReport, ReplicaQueue


async def serve(asked: dict[str, Any], said: Any) -> None:
    """Serve until stdin ends."""
    engine = await VllmEngine.start(
        asked["model"],
        MODEL,
        asked["engine_args"],
        kv_tiers=asked["kv_tiers"],
        names_key=asked["names_key"],
    )
    (core,) = [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if "EngineCore" in process.name()
    ]
    server = HttpServer(Confirming(engine.app, lambda: LoadReport(1, ReplicaQueue(0, 0, 0))))
    told = {"url": await server.start(LOOPBACK), "peer": engine.peer, "core": core}
    print(json.dumps(told), file=said, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await server.drain()
    engine.stop()


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    uvloop.run(serve(json.loads(sys.stdin.readline()), to_the_benchmark))
