"""Ray Serve's side of a placement: ranked replica ids in, live replicas out.

A gateway decides (`router.choice.placement`) and passes the ids, best first, as the first argument
of the call. This class only maps them to the replicas that Ray Serve knows to be alive. It never
raises, because an exception here hangs the request forever. It never spins: it requests back-off
after each full pass. It never mixes requests up: no FIFOMixin, which gives a chosen replica to any
request that waits first.
"""

from __future__ import annotations

import logging
import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

logger = logging.getLogger("ray.serve")


class RankedRequestRouter(RequestRouter):
    """Tries the ranked replicas in order, then all others; without ranks, two at random."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return groups of replicas, tried in order; inside a group Ray takes the shortest
        queue."""
        try:
            if pending_request is not None:
                pending_request.routing_context.should_backoff = True
            return _grouped(candidate_replicas, _ranked_ids(pending_request))
        except Exception:
            logger.exception("failed to apply a placement; any replica may serve the request")
            return [list(candidate_replicas)]


def _ranked_ids(pending_request: PendingRequest | None) -> tuple[str, ...]:
    if pending_request is None or not pending_request.args:
        return ()
    return tuple(pending_request.args[0])


def _grouped(
    candidates: list[RunningReplica], ranked_ids: tuple[str, ...]
) -> list[list[RunningReplica]]:
    by_id = {replica.replica_id.unique_id: replica for replica in candidates}
    ranked = [[by_id.pop(replica_id)] for replica_id in ranked_ids if replica_id in by_id]
    rest = list(by_id.values())
    random.shuffle(rest)
    return [*ranked, rest[:2], rest[2:]]
