"""POST /antefix/profile: profiles one engine while it serves, for operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.gateway.api import endpoints
from deployments.gateway.api.load_codes import NO_REPLICA
from deployments.gateway.api.request_codes import (
    INVALID_VALUE,
    MISSING_VALUE,
    UNKNOWN_POOL,
    UNKNOWN_REPLICA,
)
from deployments.gateway.inquiries.profile_requests import ProfileRequests
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.api_keys import KeyHolder
from deployments.gateway.intake.in_force import InForce
from deployments.gateway.pool.pools import Pools
from deployments.wire.headers import LONGEST_PROFILE_S

T = TypeVar("T")


class Profiles:
    """The endpoint. `holder_of` returns the holder of a request's key, and raises ApiError 401."""

    def __init__(
        self,
        in_force: InForce,
        holder_of: Callable[[Request], KeyHolder],
        pools: Pools,
        requests: ProfileRequests,
    ) -> None:
        self._in_force = in_force
        self._holder_of = holder_of
        self._pools = pools
        self._requests = requests

    def add_to(self, app: Starlette) -> None:
        endpoints.PROFILE.add_to(app, self.profile)

    async def profile(self, request: Request) -> Response:
        """Profile an engine for `?seconds=`, 5 by default.

        `?pool=` and `?replica=` may be omitted if there is only one. The answer comes once the
        traces are written, with their node, folder and file names.
        """
        self._holder_of(request).check_operator(self._in_force.fleet.gateway, "profile an engine")
        query = request.query_params
        seconds = _seconds(query.get("seconds", "5"), LONGEST_PROFILE_S)
        pool, board = _one_of(
            {name: pool.scheduler.board for name, pool in self._pools.by_name.items()},
            query.get("pool"),
            "pool",
        )
        if not (loads := board.loads()):
            message = f"The pool {pool!r} has no replica. Try again in 5 s."
            raise ApiError(NO_REPLICA, message, retry_after=5)
        replica, load = _one_of(loads, query.get("replica"), "replica")
        traces = await self._requests.profile(load.url, seconds)
        where = {"pool": pool, "replica": replica, "node_ip": load.node_ip}
        return JSONResponse({**where, "seconds": seconds, **traces})


def _seconds(text: str, most: float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= most:
        message = f"'seconds' is {text[:20]!r}, but it must be above 0 and at most {most:g}."
        raise ApiError(INVALID_VALUE, message, param="seconds")
    return seconds


def _one_of(there: Mapping[str, T], name: str | None, kind: str) -> tuple[str, T]:
    """Return the item with that name; without a name, the only one. There is at least one.

    Raises ApiError 400 for several without a name, and 404 for an unknown name.
    """
    known = ", ".join(map(repr, sorted(there)))
    if name is None and len(there) == 1:
        return next(iter(there.items()))
    if name is None:
        message = f"There is more than one {kind}. Set '{kind}' to one of: {known}."
        raise ApiError(MISSING_VALUE, message, param=kind)
    if name not in there:
        message = f"The {kind} {name[:128]!r} does not exist. Use one of: {known}."
        if kind == "pool":
            raise ApiError(UNKNOWN_POOL, message, param=kind)
        raise ApiError(UNKNOWN_REPLICA, message, param=kind)
    return name, there[name]
