"""What an engine is set to, as its replica tells on its own port: none of it can be measured."""

from __future__ import annotations

import msgspec

FACTS_PATH = "/antefix/facts"


class EngineFacts(msgspec.Struct, frozen=True):
    """Sizes are tokens; `sequences` run at once; `startup_s` it took to load; it computes in
    `dtype`, such as bfloat16, empty where an older release does not say."""

    step_tokens: int
    sequences: int
    block_tokens: int
    kv_capacity_tokens: int
    max_model_len: int
    startup_s: float
    dtype: str = ""

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, body: bytes) -> EngineFacts:
        """Raises msgspec.MsgspecError for anything else."""
        return msgspec.json.decode(body, type=cls)
