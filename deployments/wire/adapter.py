"""A LoRA adapter as a gateway names it to an engine, with each request for it.

    x-antefix-adapter    `Adapter`, JSON: an engine that lacks it loads it first

An engine's name for an adapter contains a digest of its files. So weights that are loaded again
under an old name are another adapter to the engine, and their requests never use its KV blocks.
"""

from __future__ import annotations

import json

import msgspec

ADAPTER_HEADER = "x-antefix-adapter"
# Where a gateway has a replica fetch an adapter and try it: POST `{"name", "source"}`.
ADAPTER_PATH = "/antefix/adapters"
# The code of a replica that cannot load the adapter of a request.
ADAPTER_UNAVAILABLE = "adapter_unavailable"


class Adapter(msgspec.Struct, frozen=True):
    """`name`: as clients call it. `digest`: of its files. `source`: a folder, a Hugging Face id
    with its commit (`acme/sql@<commit>`) or a URL."""

    name: str
    digest: str
    source: str

    @property
    def engine_name(self) -> str:
        return f"{self.name}@{self.digest}"

    def to_header(self) -> str:
        return json.dumps(msgspec.to_builtins(self))  # in ASCII, as headers are

    @classmethod
    def from_header(cls, header: bytes) -> Adapter:
        """Raises ValueError for another form."""
        return _adapter(header)


_adapter = msgspec.json.Decoder(Adapter).decode
