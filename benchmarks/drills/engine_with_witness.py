"""A real engine with its witness, outside Ray: `python -m benchmarks.drills.engine_with_witness`.

Takes {"model", "engine_args"} as JSON in its own argument. When it serves, it writes one line of
JSON with its URL and the process ids of the engine. It continues until its stdin ends, or it is
ended. Whenever the witness's verdict changes it writes it, a line of JSON each. For the line
"step" on stdin the engine's next step waits for a lock that is never freed; for "mute" it goes on,
and its output reaches no reader any more.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import queue
import sys
import threading
from typing import Any

import psutil

from deployments.engine.replica import PROBE_PERIOD_S, WATCH_PERIOD_S
from deployments.engine.vllm.adapter import VllmEngine
from deployments.engine.watchdog.hang import EngineHealth
from deployments.engine.watchdog.witness import Witness
from deployments.process.http_server import HttpServer


def _wait_in_the_next_step(worker: Any) -> None:
    """In the engine's process."""

    def wait(*args: Any, **kwargs: Any) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    worker.execute_model = wait


def _be_mute(worker: Any) -> None:
    """In the engine's process, which has this worker in its own."""
    from vllm.v1.engine.core import EngineCoreProc

    for frame in inspect.stack():
        if isinstance(core := frame.frame.f_locals.get("self"), EngineCoreProc):
            core.output_queue = queue.Queue()
            return
    raise AssertionError("no engine called this")


async def serve(asked: dict[str, Any], said: Any) -> None:
    witness = Witness(ends_hung=True)
    engine = await VllmEngine.start(
        asked["model"], "model", asked["engine_args"], heartbeat=witness.path
    )
    server = HttpServer(engine.app)
    url = await server.start("127.0.0.1")

    async def probe() -> None:
        while True:
            with witness.probing():
                await engine.probe()
            await asyncio.sleep(PROBE_PERIOD_S)

    async def watch() -> None:
        verdict = EngineHealth.HEALTHY
        while True:
            witness.beat()
            if witness.verdict[0] is not verdict:
                verdict, why = witness.verdict
                print(json.dumps({"verdict": verdict.name, "why": why}), file=said, flush=True)
            if verdict is EngineHealth.HUNG or engine.dead:
                os._exit(1)
            await asyncio.sleep(WATCH_PERIOD_S)

    tasks: tuple[asyncio.Task[Any], ...] = (
        asyncio.create_task(probe()),
        asyncio.create_task(watch()),
    )
    processes = {
        child.pid: " ".join(child.cmdline())
        for child in psutil.Process().children(recursive=True)
        if "tracker" not in " ".join(child.cmdline())
    }
    print(json.dumps({"url": url, "processes": processes}), file=said, flush=True)
    while what := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if what == "mute":  # of that, too
            unheard = asyncio.create_task(engine._engine.collective_rpc(_be_mute))
            tasks = *tasks, unheard
        else:
            await engine._engine.collective_rpc(_wait_in_the_next_step)
        print(json.dumps({"verdict": "WAITS", "why": "it was asked to"}), file=said, flush=True)
    for task in tasks:
        task.cancel()
    await server.drain()
    witness.stop()
    engine.stop()


if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    asyncio.run(serve(json.loads(sys.argv[1]), to_the_test))
