"""What a request's tries report of the engines that it loses (`checks.fatal_requests`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from deployments.gateway.intake.api_errors import ApiError


class Fate(Protocol):
    """One request's losses."""

    async def ran_out_of_memory(self, replica_id: str) -> bool:
        """Return whether a lost replica ran out of memory; may wait for its report."""

    def lost(self, replica_id: str) -> None:
        """Record that a replica was lost, after which the request may continue elsewhere."""

    def out_of_memory(self, replica_id: str) -> ApiError:
        """Record that the request ends because this replica ran out of memory. Return the error for
        its client."""

    def fatal(self, replica_ids: Iterable[str]) -> ApiError:
        """Record that the request lost all of its engines, on these replicas. Return the error for
        its client."""
