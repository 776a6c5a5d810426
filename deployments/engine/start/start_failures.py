"""Reasons why an engine did not start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from common.failure import gist
from deployments.process.serve_log import ray_logs


class EngineFailed(Exception):
    """The reason in one line, from the engine's log if vLLM refers to it: a cluster shows only Ray
    Serve's status.
    """


@contextlib.asynccontextmanager
async def engine_failures() -> AsyncIterator[None]:
    """Raise EngineFailed for every error of vLLM."""
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise EngineFailed(await asyncio.to_thread(gist, said, ray_logs())) from error
