"""Candidates for tests, and how Hypothesis makes them."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from router.choice.policies import Candidate

_IDLE = Candidate(
    replica_id="r",
    url="http://r",
    slot=0,
    incarnation="i",
    cached_tokens=0,
    confirmed_tokens=0,
    predicted_ttft_s=0.1,
    raw_ttft_s=0.1,
    wait_s=0.0,
    score=0.1,
    waiting=0,
    running=0,
    queued_prefill_tokens=0,
    inter_token_latency=0.0,
    kv_use=0.0,
    placed_lately=0.0,
    synced=True,
)


def candidate(replica_id: str = "r", **fields: Any) -> Candidate:
    return msgspec.structs.replace(_IDLE, replica_id=replica_id, **fields)


def identical_candidates(count: int, **fields: Any) -> list[Candidate]:
    return [candidate(f"r{i}", slot=i, **fields) for i in range(count)]


def ids(candidates: list[Candidate]) -> list[str]:
    return [of.replica_id for of in candidates]


any_candidate = st.builds(
    candidate,
    score=st.floats(0, 100),
    waiting=st.integers(0, 10),
    running=st.integers(0, 10),
    queued_prefill_tokens=st.integers(0, 10**5),
    inter_token_latency=st.floats(0, 0.1),
    placed_lately=st.floats(0, 100),
)
any_candidates = st.lists(any_candidate, max_size=8).map(
    lambda candidates: [
        msgspec.structs.replace(of, replica_id=f"r{i}", slot=i) for i, of in enumerate(candidates)
    ]
)
