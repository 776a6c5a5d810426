"""A real engine behind a real gateway, outside Ray: python -m tests.every_field.served_engine ARGS

ARGS are the engine's arguments, as JSON. A second argument names a module whose `make` writes
another model than the embedded one. When the engine serves, it writes one line of JSON with the
gateway's URL and the process ids of the engine. It continues until its stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from importlib import import_module
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
from tests.served import stdout_for_the_test
from weights.speculation.drafts import first_layers

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


async def serve(engine_args: dict[str, Any], folder: Path, said: Any) -> None:
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
    lines = stdout_for_the_test()
    make = import_module(sys.argv[2]).make if len(sys.argv) > 2 else make_shallow
    with tempfile.TemporaryDirectory() as temporary:
        make(folder := Path(temporary, "model"))
        asyncio.run(serve(json.loads(sys.argv[1]), folder, lines))
