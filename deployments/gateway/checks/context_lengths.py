"""The context lengths of a pool's engines, as far as a gateway knows them."""

from __future__ import annotations

from deployments.gateway.pool.pool import GatewayPool


def lengths_of(pool: GatewayPool) -> list[int]:
    """Return the lengths that the pool's engines report and the fleet file sets, in tokens."""
    reported = [load.max_model_len for load in pool.scheduler.board.last_known().values()]
    written = pool.settings.engine_args.get("max_model_len")
    # vLLM chooses the length if the value is -1 or absent
    known = [written] if isinstance(written, int) and written > 0 else []
    return [*filter(None, reported), *known]
