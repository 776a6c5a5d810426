"""Where an engine gets the cached tokens of a prompt, as the gateway decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import aiohttp

from deployments.gateway.record.pool_reporter import Prefilled
from deployments.wire.headers import (
    EXPECTED_CACHED_HEADER,
    HOST_ONLY,
    KV_SOURCE_HEADER,
    KV_TIERS_HEADER,
    NO_TIERS,
    TIER_TOKENS_HEADER,
)
from router.choice.policies import Candidate

# Sends a body for a try to a replica: `EngineRequests.post`.
Post = Callable[..., Awaitable[aiohttp.ClientResponse]]
# Lets another pool compute a prompt.
Prefill = Callable[[Post], Awaitable[Prefilled]]


class CachedPrompt:
    """The cached tokens of one try. `chosen` None: any replica may serve it, and nothing is known.

    `expected`: their number. `prefilled`: how the prefill pool computed the prompt; None: it did
    not get it, as without `prefill`.
    """

    def __init__(self, chosen: Candidate | None, prefill: Prefill | None = None) -> None:
        self._prefill = prefill
        self.expected = chosen.cached_tokens if chosen else 0
        self.prefilled: Prefilled | None = None
        self._chosen = chosen
        self._loaded = chosen.loaded_tokens if chosen else (0, 0, 0)

    async def compute(self, post: Post) -> None:
        """Let the prefill pool compute the prompt, if that was decided."""
        if self._prefill is None:
            return
        self.prefilled = await self._prefill(post)
        if not self.prefilled.address and self._chosen is not None:
            self.expected -= self._chosen.prefill_tokens
            self._loaded = (*self._loaded[:2], 0)

    def headers(self, replica_id: str) -> dict[str, str]:
        """Return the headers for the engine of this replica. If the chosen one is full, another
        takes its place, which may be the source."""
        headers = {EXPECTED_CACHED_HEADER: str(self.expected)}
        if tiers := _loads_from(self._chosen):
            headers[KV_TIERS_HEADER] = tiers
        if source := self._source(replica_id):
            headers[KV_SOURCE_HEADER] = source
        if any(self._loaded):
            headers[TIER_TOKENS_HEADER] = "{} {} {}".format(*self._loaded)
        return headers

    def _source(self, replica_id: str) -> str:
        """The address from which it pulls; empty: it does not."""
        if self.prefilled is not None:
            return self.prefilled.address
        if self._chosen is None or replica_id != self._chosen.replica_id:
            return ""
        return self._chosen.peer if self._chosen.pulls else ""


def _loads_from(chosen: Candidate | None) -> str:
    """Return the value of KV_TIERS_HEADER for the chosen replica; empty: without a limit."""
    if chosen is None:
        return ""
    if chosen.refuses_host:
        return NO_TIERS
    is_limited = chosen.refuses_disk or chosen.pulls or chosen.prefills_elsewhere
    return HOST_ONLY if is_limited else ""
