"""The profiler endpoint of a replica for a gateway: POST /antefix/profile?seconds=N.

One profile at a time, for at most LONGEST_PROFILE_S. It stops on time even if its gateway
disconnects: a profiler that keeps running would slow the engine.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.wire.headers import LONGEST_PROFILE_S


class Profiler(Protocol):
    """The interface of `deployments.engine.vllm.watch.profiler.EngineProfiler`."""

    folder: str | None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def files(self) -> dict[str, int]: ...


class Profiling:
    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._running: asyncio.Task[list[dict[str, Any]]] | None = None

    async def answer(self, request: Request) -> Response:
        """Return the folder of the traces on this node, and the names and sizes of the new ones."""
        seconds = float(request.query_params["seconds"])
        if not 0 < seconds <= LONGEST_PROFILE_S:
            return _refused(400, f"A profile lasts at most {LONGEST_PROFILE_S:g} seconds.")
        if self._profiler.folder is None:
            return _refused(
                409,
                "The pool's engines have no profiler. Set 'profiler_config' in the pool's"
                " 'engine_args', as docs/profiling.md shows. This restarts its engines.",
            )
        if self._running is not None and not self._running.done():
            return _refused(409, "The engine is already being profiled. Try again later.")
        self._running = asyncio.create_task(self._profile(seconds))
        files = await asyncio.shield(self._running)
        return JSONResponse({"folder": self._profiler.folder, "files": files})

    async def _profile(self, seconds: float) -> list[dict[str, Any]]:
        before = await asyncio.to_thread(self._profiler.files)
        await self._profiler.start()
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._profiler.stop()
        after = await asyncio.to_thread(self._profiler.files)
        new = sorted(after.items() - before.items())
        return [{"name": name, "bytes": size} for name, size in new]


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
