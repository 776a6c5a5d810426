"""Why an engine did not start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from common.failure import gist
from deployments.process.serve_log import ray_logs


class EngineFailed(Exception):
    """Why the engine did not start, in one line, from its log where vLLM says "see above": Ray
    Serve's status is all that a cluster shows of it.
    """


@contextlib.asynccontextmanager
async def engine_failures() -> AsyncIterator[None]:
    """Raises EngineFailed for whatever vLLM raises."""
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise EngineFailed(await asyncio.to_thread(gist, said, ray_logs())) from error
