"""Makes a replica profile its engine (`deployments.engine.serving.profiling`)."""

from __future__ import annotations

from typing import Any

import aiohttp

from deployments.gateway.api.request_codes import CANNOT_PROFILE
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import PROFILE_PATH

# Time to write a trace: for many steps it exceeds the time to record it.
WRITING_S = 600.0


class ProfileRequests:
    """Sends profile requests to replicas, with the fleet's secret."""

    def __init__(self, session: aiohttp.ClientSession, engine_secret: str) -> None:
        self._session = session
        self._passes = EnginePasses(engine_secret)

    async def profile(self, url: str, seconds: float) -> dict[str, Any]:
        """Return the `folder` of the traces on the replica's node, and its new `files`.

        Raises ApiError if the engine has no profiler, is already being profiled or does not answer.
        """
        response = self._session.post(
            url + PROFILE_PATH,
            params={"seconds": str(seconds)},
            headers=self._passes.headers(url, path=PROFILE_PATH),
            timeout=aiohttp.ClientTimeout(total=seconds + WRITING_S),
        )
        try:
            async with response as answer:
                body: dict[str, Any] = await answer.json()
                if answer.status == 200:
                    return {"folder": body["folder"], "files": body["files"]}
                raise ApiError(CANNOT_PROFILE, body["error"]["message"], status=answer.status)
        except (aiohttp.ClientError, OSError, ValueError, TypeError, KeyError, TimeoutError):
            message = "The engine could not be profiled. See the log of its replica for the reason."
            raise ApiError(CANNOT_PROFILE, message) from None
