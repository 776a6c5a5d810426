"""What probes and load balancers ask a gateway; nothing here needs a key."""

from __future__ import annotations

import os
from collections.abc import Mapping

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from common.loops import Loops
from deployments.gateway.inquiries.peers import Peers
from deployments.gateway.inquiries.status import pools_ready
from deployments.gateway.pool.pool import GatewayPool
from deployments.gateway.pool.serve_controller import ServeController


def unheard_s() -> float:
    """How long load balancers go on sending requests to a gateway that leaves, in seconds.

    From ANTEFIX_UNHEARD_S; where nobody asks `/health/serving`, nobody need be waited for.
    """
    return float(os.environ.get("ANTEFIX_UNHEARD_S", "0"))


class Health:
    """`leaving` is set once this gateway should get no more requests; `pools` are those of now."""

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
        for name, answer in (("live", self.live), ("ready", self.ready), ("serving", self.serving)):
            app.add_route(f"/health/{name}", answer, methods=["GET"])

    async def live(self, request: Request) -> Response:
        """200 while all that runs beside the requests does, else 503 and what has ended."""
        where = {"cluster": self._peers.cluster}
        if ended := self._loops.ended:
            return _unavailable({"status": "broken", "ended_loops": ended, **where})
        return JSONResponse({"status": "live", **where})

    async def ready(self, request: Request) -> Response:
        """200 when every pool has a running replica, else 503 and which has none."""
        if waiting := await pools_ready(self.pools, self._controller):
            return _unavailable({"status": "starting", "waiting_for_pools": waiting})
        return JSONResponse({"status": "ready"})

    async def serving(self, request: Request) -> Response:
        """200 while this gateway should get requests: since it could serve, until it leaves.

        For load balancers. A pool that is lost later is not this gateway's fault, and what it says
        of it is worth more than a connection refused.
        """
        if self.leaving:
            return _unavailable({"status": "leaving"})
        if not self._has_served:
            self._has_served = await self._can_serve()
        if not self._has_served:
            return _unavailable({"status": "starting"})
        return JSONResponse({"status": "serving"})

    async def _can_serve(self) -> bool:
        """Whether any pool is ready; while another cluster serves, whether all of this one runs.

        The latter is when KubeRay, too, lets the new cluster take the place of the one before.
        """
        if len(await pools_ready(self.pools, self._controller)) == len(self.pools):
            return False
        if await self._peers.another_cluster_serves(self._session):
            return (await self._controller.status.latest()).all_run
        return True


def _unavailable(body: Mapping[str, object]) -> Response:
    return JSONResponse(body, status_code=503, headers={"retry-after": "2"})
