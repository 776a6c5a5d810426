"""GET and POST /antefix/canaries: shows canaries; operators promote or abort one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.gateway.api import endpoints
from deployments.gateway.api.operator_codes import CANARY_CHANGED, UNKNOWN_CANARY
from deployments.gateway.api.request_codes import INVALID_VALUE
from deployments.gateway.intake.api_errors import ApiError, no_redis
from deployments.gateway.intake.api_keys import KeyHolder
from deployments.gateway.intake.in_force import InForce
from deployments.gateway.models.canaries import Canaries, Canary
from deployments.gateway.models.canary_test import SHARES
from router.redis.redis_client import REDIS_FAILURES

ACTIONS = {"promote": "promoted", "abort": "aborted"}


class CanaryRequests:
    """The endpoints. `holder_of` returns the holder of a request's key, and raises ApiError 401."""

    def __init__(
        self, in_force: InForce, holder_of: Callable[[Request], KeyHolder], canaries: Canaries
    ) -> None:
        self._in_force = in_force
        self._holder_of = holder_of
        self._canaries = canaries

    def add_to(self, app: Starlette) -> None:
        endpoints.CANARIES.add_to(app, self.show)
        endpoints.END_CANARY.add_to(app, self.end)

    async def show(self, request: Request) -> Response:
        self._check(request)
        found = self._canaries.by_route.items()
        return JSONResponse({name: _status(canary) for name, canary in found})

    async def end(self, request: Request) -> Response:
        """End a canary with `?action=promote` or `?action=abort`."""
        self._check(request)
        route, action = request.path_params["model"], request.query_params.get("action", "")
        if action not in ACTIONS:
            message = f"'action' is {action[:20]!r}, but it must be 'promote' or 'abort'."
            raise ApiError(INVALID_VALUE, message, param="action")
        if route not in self._canaries.by_route:
            names = ", ".join(self._canaries.by_route) or "none"
            message = f"The model {route[:100]!r} has no canary. Models with a canary: {names}."
            raise ApiError(UNKNOWN_CANARY, message, param="model")
        try:
            done = await self._canaries.end(route, ACTIONS[action], "An operator ended it.")
        except REDIS_FAILURES:
            raise no_redis("the canaries") from None
        if done is None:
            message = (
                "The canary has just changed. Check its state with GET /antefix/canaries. If your"
                " change is still needed, send it again."
            )
            raise ApiError(CANARY_CHANGED, message)
        return JSONResponse(_status(self._canaries.by_route[route]))

    def _check(self, request: Request) -> None:
        settings = self._in_force.fleet.gateway
        self._holder_of(request).check_operator(settings, "see and end canaries")


def _status(canary: Canary) -> dict[str, Any]:
    """Return a canary's status. `requests` and `log_wealths` are this gateway's only."""
    return {
        "adapter" if canary.is_adapter else "pool": canary.of,
        "share": canary.share,
        "state": msgspec.to_builtins(canary.state),
        "steps": list(canary.plan.steps),
        "requests": canary.requests,
        "log_wealths": canary.log_wealths,
        "log_limits": {name: canary.rule.log_limit(name) for name in SHARES},
    }
