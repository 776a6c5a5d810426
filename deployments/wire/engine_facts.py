"""Settings of an engine that gateways cannot measure, as its replica reports them over HTTP."""

from __future__ import annotations

import msgspec

FACTS_PATH = "/antefix/facts"


class EngineFacts(msgspec.Struct, frozen=True):
    """Settings and sizes of one engine; sizes are in tokens.

    `sequences`: the most that run at once. `startup_s`: the seconds to load. `dtype`: the number
    format of its computation, such as bfloat16; empty from an older release.
    """

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
        """Parse a replica's answer. Raises msgspec.MsgspecError: when it has another form."""
        return msgspec.json.decode(body, type=cls)
