"""Loads for tests, and how Hypothesis makes them."""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from router.load import ReplicaLoad


def load(replica_id: str = "r", **fields: Any) -> ReplicaLoad:
    idle: dict[str, Any] = {
        "slot": 0,
        "incarnation": f"{replica_id}-1",
        "url": f"http://{replica_id}",
        "node_ip": "10.0.0.1",
        "waiting": 0,
        "running": 0,
        "queued_prefill_tokens": 0,
        "kv_use": 0.0,
        "kv_capacity_tokens": 0,
        "prefill_rate": 1000.0,
        "inter_token_latency": 0.0,
        "segment_tokens": 128,
        "renderer": "",
        "synced": True,
        "sequence": 0,
    }
    return ReplicaLoad(**{"replica_id": replica_id, **idle, **fields})


def pool(count: int, **fields: Any) -> dict[str, ReplicaLoad]:
    """`count` replicas r0, r1, ... that are alike, in slots 0, 1, ..."""
    return {f"r{i}": load(f"r{i}", **{"slot": i, **fields}) for i in range(count)}


def seniors(*started: float, **fields: Any) -> list[ReplicaLoad]:
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
