"""The explanation of one request, as JSON: its placement and how it ended.

It never has prompts, answers or error messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from observability.request_record import RequestRecord

logger = logging.getLogger("ray.serve")


def explanation_of(record: RequestRecord, has_ended: bool) -> dict[str, Any]:
    """Return the current explanation of a request.

    Times are in seconds; `at` is the Unix time of its arrival. Until it `has_ended`, `outcome` is
    null and `duration_s` is the time so far. `stage` is the last stage that it reached. `replica`
    is the one that answered, or without a first token the last one that it was sent to.
    """
    return {
        "request_id": record.request_id,
        "tenant": record.tenant,
        "at": round(time.time() - record.duration_s, 3),
        "path": record.path,
        "replica": record.replica_id or None,
        **_decided(record),
        "last_replica": record.replica_id or None,
        "outcome": record.outcome if has_ended else None,
        "status": (record.status or None) if has_ended else None,
        "error": record.error or None,
        "stage": record.stage,
        "duration_s": round(record.duration_s, 5),
        "tpot_s": record.tpot_s if has_ended else None,
        "output_tokens": record.output_tokens if has_ended else None,
        "budget": record.charge,
        "phases": {**vars(record.phases)},
    }


def route_of(record: RequestRecord) -> dict[str, Any]:
    """Return the requested model, why its pool was chosen, and the offers of competing pools."""
    return {
        "model": record.model or None,
        "by": record.routed_by or None,
        "offers": list(record.offers),
    }


def _decided(record: RequestRecord) -> Mapping[str, Any]:
    try:
        if record.explain is not None:
            return record.explain()
    except Exception:
        logger.exception("the placement of request %s is not explained", record.request_id)
    return _undecided(record)


def _undecided(record: RequestRecord) -> dict[str, Any]:
    """The fields of `PoolReporter.decided` for a request that ended before a decision."""
    return {
        "pool": record.pool or None,
        "model": record.model or None,
        "route": route_of(record),
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
