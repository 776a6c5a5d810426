"""The tiers of simulated replicas: the `kv_tiers` of a pool, in tokens."""

from __future__ import annotations

from common.errors import Problem
from deployments.fleet.model_lookup import Unknown, engine_of, look_up, pool_model
from deployments.fleet.pool import Pool
from simulator.cache.kv_tiers import TierSettings
from simulator.engine_profile import EngineProfile
from weights.kernels.fits import cache_dtype_of
from weights.model.memory import kv_tokens


def tiers_of(name: str, pool: Pool, profile: EngineProfile) -> TierSettings | None:
    """Return the tiers of each replica, with the profile's rates; None if the pool has none.

    Raises Problem if the bytes of a token are unknown.
    """
    if pool.kv_tiers is None:
        return None
    engine = engine_of(pool)
    model, cache = look_up(pool_model(pool), engine), cache_dtype_of(engine)
    if isinstance(model, Unknown):
        raise Problem(
            f"pools.{name}.kv_tiers: {model.why.removeprefix('not checked: ')}",
            "download the model's config.json, or name a folder that has one",
        )
    if cache is None:
        raise Problem(
            f"pools.{name}.kv_tiers: the size of a token is unknown with kv_cache_dtype"
            f" {engine.args.get('kv_cache_dtype')}",
            "set another one",
        )
    shape, degree, disk = model.shape, engine.tensor_parallel, pool.kv_tiers.disk
    host_tokens, disk_tokens = (
        kv_tokens(shape, size // degree, cache, tp=degree)
        for size in (int(pool.kv_tiers.host_bytes), int(disk.max_bytes) if disk else 0)
    )
    return TierSettings(
        host_tokens,
        disk_tokens,
        profile.host_load_rate,
        profile.disk_load_rate,
        pool.kv_tiers.peers,
        profile.peer_load_rate,
    )
