"""Endpoints for probes and load balancers. They need no key."""

from __future__ import annotations

import os
from collections.abc import Mapping

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from common.loops import Loops
from deployments.gateway.api import endpoints
from deployments.gateway.api.response_headers import RETRY_AFTER
from deployments.gateway.inquiries.peers import Peers
from deployments.gateway.inquiries.status import pools_ready
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.serve_controller import ServeController


def unheard_s() -> float:
    """Return how long load balancers still send requests to a leaving gateway, in seconds.

    ANTEFIX_UNHEARD_S sets it. The default is 0, for fleets where nothing probes `/health/serving`.
    """
    return float(os.environ.get("ANTEFIX_UNHEARD_S", "0"))


class Health:
    """The health endpoints.

    `leaving` is set once this gateway should get no more requests; `pools` are the current ones.
    """

    def __init__(
        self, session: aiohttp.ClientSession, loops: Loops, controller: ServeController
    ) -> None:
        self._loops = loops
        self._controller = controller
        self.leaving = False
        self.pools: Mapping[str, GatewayPool] = {}
        self._has_served = False
        self._peers = Peers.from_environment()
        self._session = session

    def add_to(self, app: Starlette) -> None:
        endpoints.LIVE.add_to(app, self.live)
        endpoints.READY.add_to(app, self.ready)
        endpoints.SERVING.add_to(app, self.serving)

    async def live(self, request: Request) -> Response:
        """Return 200 while all background loops run, otherwise 503 with the ended ones."""
        where = {"cluster": self._peers.cluster}
        if ended := self._loops.ended:
            return _unavailable({"status": "broken", "ended_loops": ended, **where})
        return JSONResponse({"status": "live", **where})

    async def ready(self, request: Request) -> Response:
        """Return 200 if every pool has a running replica, otherwise 503 with pools that have none.

        Pools that may be scaled to zero do not count.
        """
        if waiting := await pools_ready(self.pools, self._controller):
            return _unavailable({"status": "starting", "waiting_for_pools": waiting})
        return JSONResponse({"status": "ready"})

    async def serving(self, request: Request) -> Response:
        """Return 200 while load balancers should send requests here: once ready, until it leaves.

        A later loss of a pool changes nothing, because the gateway's error helps clients more than
        a refused connection.
        """
        if self.leaving:
            return _unavailable({"status": "leaving"})
        if not self._has_served:
            self._has_served = await self._can_serve()
        if not self._has_served:
            return _unavailable({"status": "starting"})
        return JSONResponse({"status": "serving"})

    async def _can_serve(self) -> bool:
        """Return whether a pool is ready; while another cluster serves, whether all pools run.

        KubeRay replaces the old cluster under the same condition.
        """
        if len(await pools_ready(self.pools, self._controller)) == len(self.pools):
            return False
        if await self._peers.another_cluster_serves(self._session):
            return (await self._controller.status.latest()).all_run
        return True


def _unavailable(body: Mapping[str, object]) -> Response:
    return JSONResponse(body, status_code=503, headers={RETRY_AFTER: "2"})
