"""How many tokens the engines of a pool hold, as far as a gateway knows."""

from __future__ import annotations

from deployments.gateway.pool.pool import GatewayPool


def lengths_of(pool: GatewayPool) -> list[int]:
    """What its engines report, and what the fleet file says."""
    reported = [load.max_model_len for load in pool.scheduler.board.last_known().values()]
    written = pool.settings.engine_args.get("max_model_len")
    # -1 leaves the length to vLLM, as does no value
    known = [written] if isinstance(written, int) and written > 0 else []
    return [*filter(None, reported), *known]
