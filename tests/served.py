"""One replica's engine outside Ray, in a process that a test starts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

from starlette.types import ASGIApp

from deployments.engine.serving.confirming import Confirming
from deployments.engine.vllm.adapter import VllmEngine
from deployments.process.http_server import HttpServer
from router.board.load import LoadReport, ReplicaQueue


def stdout_for_the_test() -> TextIO:
    """This process's stdout. What vLLM prints goes to stderr from now on."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lines


def log_to(file: Path) -> None:
    """Write what this process and those that it starts print to a file from now on."""
    with file.open("a") as lines:
        for descriptor in (1, 2):
            os.dup2(lines.fileno(), descriptor)


def confirming(engine: VllmEngine) -> ASGIApp:
    """The engine's application as gateways know it, idle in all its reports."""
    return Confirming(engine.app, lambda: LoadReport(1, ReplicaQueue(0, 0, 0)))


@asynccontextmanager
async def at_a_url(engine: VllmEngine, app: ASGIApp | None = None) -> AsyncIterator[str]:
    """Serve the engine, inside of `app` if that is given. Both end with it."""
    server = HttpServer(app or confirming(engine))
    url = await server.start("127.0.0.1")
    try:
        yield url
    finally:
        await server.drain()
        engine.stop()
