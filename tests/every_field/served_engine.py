"""A real engine behind a real gateway, outside Ray: python -m tests.every_field.served_engine

Takes the engine's arguments as JSON in its own argument. When it serves, it writes one line of
JSON, the gateway's URL and the process ids of the engine, and goes on until its stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from deployments.engine.vllm.adapter import VllmEngine
from deployments.models.model import embedded_model
from deployments.wire.headers import RENDERER_PATH
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import gateway_before
from weights.drafts import first_layers


class RealEngine(FakeEngine):
    """What a gateway in a test takes for a replica, with vLLM's own application inside."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        super().__init__(limit=engine.max_sequences)
        self.renderer = engine.renderer

    def _app(self) -> Starlette:
        renderer = Route(RENDERER_PATH, self._renderer)
        return Starlette(routes=[renderer, Mount("/", self._engine.app)])


async def serve(engine_args: dict[str, Any], folder: Path, said: Any) -> None:
    # what an engine makes of a field does not depend on the depth of its model
    first_layers(embedded_model(lambda fraction, what: None), 1, folder)
    engine = await VllmEngine.start(str(folder), MODEL, engine_args)
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    async with gateway_before(
        RealEngine(engine), pool={"engine_args": engine_args}, request_timeout_s=300
    ) as front:
        print(json.dumps({"url": front.url, "processes": children}), file=said, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    engine.stop()


if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(serve(json.loads(sys.argv[1]), Path(temporary, "model"), to_the_test))
