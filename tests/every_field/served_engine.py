"""A real engine behind a real gateway, outside Ray: python -m tests.every_field.served_engine

Takes the engine's arguments as JSON in its own argument. When it serves, it writes one line of
JSON with the gateway's URL and the process ids of the engine. It continues until its stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from deployments.engine.vllm.adapter import VllmEngine
from deployments.models.model import embedded_model
from deployments.wire.headers import RENDERER_PATH
from tests.every_field.spending import Spending
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import OTHER_TENANT, gateway_before
from weights.drafts import first_layers

SPENT_PATH = "/test/spent"


class RealEngine(FakeEngine):
    """What a gateway in a test takes for a replica, with vLLM's own application inside."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.spending = Spending()
        super().__init__(limit=engine.max_sequences)
        self.renderer = engine.renderer

    def _app(self) -> Starlette:
        renderer = Route(RENDERER_PATH, self._renderer)
        spent = Route(SPENT_PATH, self._spent)
        return Starlette(routes=[renderer, spent, Mount("/", self._engine.app)])

    async def _spent(self, request: Request) -> Response:
        """What the engine has generated in all, and what each ended request was charged."""
        generated = self._engine.stats.output_tokens
        return JSONResponse({"generated": generated, "settled": self.spending.settled})


def make_shallow(folder: Path) -> None:
    """What an engine makes of a field does not depend on the depth of its model."""
    first_layers(embedded_model(lambda fraction, what: None), 1, folder)


async def serve(
    engine_args: dict[str, Any],
    folder: Path,
    said: Any,
    make: Callable[[Path], None] = make_shallow,
) -> None:
    make(folder)
    engine = await VllmEngine.start(str(folder), MODEL, engine_args)
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    served = RealEngine(engine)
    limits = {"limits": {"tokens_per_minute": 10**9}}
    async with gateway_before(
        served,
        pool={"engine_args": engine_args},
        tenants={OTHER_TENANT: limits},
        request_timeout_s=300,
    ) as front:
        front.gateway.parts.budgets.ledger = cast(Any, served.spending)
        spent = [served.url + SPENT_PATH, served.access]
        told = {"url": front.url, "processes": children, "spent": spent}
        print(json.dumps(told), file=said, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    engine.stop()


if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(serve(json.loads(sys.argv[1]), Path(temporary, "model"), to_the_test))
