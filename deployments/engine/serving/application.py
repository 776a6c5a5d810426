"""The HTTP application of a replica: its engine's API, and the fleet's own endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from deployments.engine.handover.sealed_handover import HANDOVER_PATH
from deployments.engine.serving.profiling import Profiling
from deployments.wire.engine_facts import FACTS_PATH, EngineFacts
from deployments.wire.headers import PROFILE_PATH, RENDERER_PATH
from deployments.wire.lora_adapter import ADAPTER_PATH

if TYPE_CHECKING:
    from deployments.engine.vllm.adapter import VllmEngine


def application(
    engine: VllmEngine,
    answers: ASGIApp,
    adapter_loads: ASGIApp,
    segment_tokens: int,
    startup_s: float,
    handovers: ASGIApp | None = None,
) -> Starlette:
    """Return the application. `answers` serves the engine's API, `adapter_loads` POST ADAPTER_PATH,
    and `handovers` HANDOVER_PATH; `startup_s`: the seconds that the replica took to start."""

    async def renderer(request: Request) -> Response:
        """Return the facts from which a gateway computes this engine's tokens."""
        facts = engine.renderer
        if facts is None:
            return JSONResponse({"error": "only the engine can render"}, status_code=404)
        return Response(facts.to_json(), media_type="application/json")

    async def facts(request: Request) -> Response:
        """Return facts that `antefix calibrate` cannot measure from outside."""
        facts = EngineFacts(
            step_tokens=engine.max_step_tokens,
            sequences=engine.max_sequences,
            block_tokens=engine.block_size or segment_tokens or 16,
            kv_capacity_tokens=engine.kv_capacity_tokens,
            max_model_len=engine.max_model_len,
            startup_s=startup_s,
            dtype=engine.dtype,
        )
        return Response(facts.to_json(), media_type="application/json")

    return Starlette(
        routes=[
            Route(RENDERER_PATH, renderer),
            Route(FACTS_PATH, facts),
            Route(PROFILE_PATH, Profiling(engine.profiler).answer, methods=["POST"]),
            Route(ADAPTER_PATH, adapter_loads, methods=["POST"]),
            *([Route(HANDOVER_PATH, handovers)] if handovers else []),
            Mount("/", answers),
        ]
    )
