"""The explanation of one request, as JSON: its placement and how it ended.

It never has prompts, answers or error messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from observability.traces.request_record import AnswerEnd, RequestRecord

logger = logging.getLogger("ray.serve")


def explanation_of(
    record: RequestRecord, duration_s: float, end: AnswerEnd | None = None
) -> dict[str, Any]:
    """Return the current explanation of a request.

    Times are in seconds; `at` is the Unix time of its arrival. Until it has an `end`, `outcome` is
    null. `duration_s` is the time until its end, or so far. `stage` is the last stage that it
    reached. `replica` is the one that answered, or without a first token the last one that it was
    sent to.
    """
    return {
        "request_id": record.facts.request_id,
        "tenant": record.facts.tenant,
        "at": round(time.time() - duration_s, 3),
        "path": record.facts.path,
        "replica": record.replica_id or None,
        "route": route_of(record),
        **_decided(record),
        "last_replica": record.replica_id or None,
        "outcome": end.outcome if end else None,
        "status": end.status if end else None,
        "error": (end.error or None) if end else None,
        "stage": record.stage,
        "duration_s": round(duration_s, 5),
        "tpot_s": record.tpot_s(end) if end else None,
        "output_tokens": end.output_tokens if end else None,
        "budget": record.charge,
        "left_out_tools": list(record.facts.left_out_tools),
        "phases": {**vars(record.phases)},
    }


def route_of(record: RequestRecord) -> dict[str, Any]:
    """Return the requested model, why its pool was chosen, and the offers of competing pools."""
    return {
        "model": record.facts.model or None,
        "by": record.facts.routed_by or None,
        "offers": list(record.facts.offers),
    }


def _decided(record: RequestRecord) -> Mapping[str, Any]:
    try:
        if record.decision is not None:
            return record.decision.explained()
    except Exception:
        logger.exception("failed to explain the placement of request %s", record.facts.request_id)
    return _undecided(record)


def _undecided(record: RequestRecord) -> dict[str, Any]:
    """The fields of `PoolReporter.decided` for a request that ended before a decision."""
    return {
        "pool": record.facts.pool or None,
        "model": record.facts.model or None,
        "policy": None,
        "admission": None,
        "slo_ttft_s": None,
        "slo_tpot_s": None,
        "slo_e2e_s": None,
        "index_answered": False,
        "prompt_known": False,
        "segments": 0,
        "popularity": 0.0,
        "prompt_tokens": {"counted": None, "confirmed": None},
        "read_s": None,
        "lookup_s": None,
        "candidates": (),
        "candidates_not_shown": 0,
    }
