"""Loads for tests, and how Hypothesis makes them."""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from router.board.load import EnginePace, ReplicaCache, ReplicaLoad, ReplicaQueue

# Where a load has what tests name without its part.
PARTS = {
    **{name: ("queue", name) for name in ("waiting", "running")},
    "queued_prefill_tokens": ("queue", "prefill_tokens"),
    **{f"queued_{tier}_tokens": ("queue", f"{tier}_tokens") for tier in ("host", "disk", "peer")},
    "kv_use": ("cache", "use"),
    "kv_capacity_tokens": ("cache", "capacity_tokens"),
    **{name: ("cache", name) for name in ("segment_tokens", "synced")},
    **{name: ("pace", name) for name in EnginePace.__struct_fields__},
    "adapters": ("adapters", "resident"),
    **{f"adapter_{name}": ("adapters", name) for name in ("slots", "load_s")},
    "adapters_busy": ("adapters", "busy"),
}


def changed(load: ReplicaLoad, **fields: Any) -> ReplicaLoad:
    """The load with other values, in its fields or in those of its parts."""
    own: dict[str, Any] = {}
    for name, value in fields.items():
        part, field = PARTS.get(name, ("", name))
        if part:
            own[part] = replace(own.get(part, getattr(load, part)), **{field: value})
        else:
            own[field] = value
    return replace(load, **own)


def load(replica_id: str = "r", **fields: Any) -> ReplicaLoad:
    idle = ReplicaLoad(
        replica_id=replica_id,
        slot=0,
        incarnation=f"{replica_id}-1",
        url=f"http://{replica_id}",
        node_ip="10.0.0.1",
        queue=ReplicaQueue(0, 0, 0),
        pace=EnginePace(1000.0, 0.0),
        cache=ReplicaCache(segment_tokens=128),
    )
    return changed(idle, **fields)


def pool(count: int, **fields: Any) -> dict[str, ReplicaLoad]:
    """`count` replicas r0, r1, ... that are alike, in slots 0, 1, ..."""
    return {f"r{i}": load(f"r{i}", **{"slot": i, **fields}) for i in range(count)}


def loads_ready_at(*started: float, **fields: Any) -> list[ReplicaLoad]:
    """Replicas r0, r1, ..., ready at these times."""
    return [
        load(f"r{i}", slot=i, incarnation=f"i{i}", started_at=at, **fields)
        for i, at in enumerate(started)
    ]


any_load = st.builds(
    load,
    waiting=st.integers(0, 100),
    running=st.integers(0, 100),
    queued_prefill_tokens=st.integers(0, 10**6),
    kv_use=st.floats(0, 1),
    kv_capacity_tokens=st.integers(0, 10**6),
    prefill_rate=st.floats(1, 1e6),
    inter_token_latency=st.floats(0, 10),
    max_sequences=st.integers(0, 100),
    decode_s=st.floats(0, 10),
    engines_at_once=st.integers(0, 4),
)
any_loads = st.lists(any_load, max_size=8).map(
    lambda loads: {
        f"r{i}": replace(of, replica_id=f"r{i}", slot=i, incarnation=f"r{i}-1")
        for i, of in enumerate(loads)
    }
)
tokens = st.integers(0, 10**6)
