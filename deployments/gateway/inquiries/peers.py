"""Whether another Ray cluster serves the same clients now, as the one before does in an upgrade.

Both clusters' gateways are behind one Service, and `ANTEFIX_PEERS_URL` leads to any of them that is
ready. Each says in `/health/live` which cluster it is of.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import aiohttp

# A kubelet gives a probe 5 s.
_TIMEOUT = aiohttp.ClientTimeout(total=4.0, sock_connect=2.0)


@dataclass(frozen=True)
class Peers:
    """`cluster` is this one; `url` is "" where there is no other."""

    cluster: str
    url: str

    @staticmethod
    def from_environment() -> Peers:
        return Peers(os.environ.get("ANTEFIX_CLUSTER", ""), os.environ.get("ANTEFIX_PEERS_URL", ""))

    async def another_cluster_serves(self, session: aiohttp.ClientSession) -> bool:
        """Whether a gateway of another is ready; also when one is reached that does not answer."""
        if not self.url:
            return False
        try:
            async with session.get(f"{self.url}/health/live", timeout=_TIMEOUT) as answer:
                return bool((await answer.json())["cluster"] != self.cluster)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return False
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
            return True
