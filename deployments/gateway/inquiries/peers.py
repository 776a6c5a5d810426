"""Detects another Ray cluster that serves the same clients, like the old one during an upgrade.

The gateways of both clusters are behind one Service. `ANTEFIX_PEERS_URL` leads to any ready one.
Each reports its cluster in `/health/live`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import aiohttp

# Shorter than a kubelet's timeout for a probe, 5 s.
_TIMEOUT = aiohttp.ClientTimeout(total=4.0, sock_connect=2.0)


@dataclass(frozen=True)
class Peers:
    """The gateway's own cluster, and the Service's URL; "" if there is no other cluster."""

    cluster: str
    url: str

    @staticmethod
    def from_environment() -> Peers:
        return Peers(os.environ.get("ANTEFIX_CLUSTER", ""), os.environ.get("ANTEFIX_PEERS_URL", ""))

    async def another_cluster_serves(self, session: aiohttp.ClientSession) -> bool:
        """Return whether a gateway of another cluster is ready.

        True if a gateway accepts the connection but gives no usable answer.
        """
        if not self.url:
            return False
        try:
            async with session.get(f"{self.url}/health/live", timeout=_TIMEOUT) as answer:
                return bool((await answer.json())["cluster"] != self.cluster)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return False
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
            return True
