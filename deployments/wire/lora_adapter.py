"""A LoRA adapter, as a gateway names it to an engine in each request for it.

    x-antefix-adapter    `Adapter`, JSON: an engine that lacks it loads it first

An engine's name for an adapter contains a digest of its files. So new weights under an old name are
a new adapter to the engine, and their requests never use KV blocks of the old one.
"""

from __future__ import annotations

import json

import msgspec

ADAPTER_HEADER = "x-antefix-adapter"
# A gateway requests here that a replica downloads and tries an adapter: POST `{"name", "source"}`.
ADAPTER_PATH = "/antefix/adapters"
# The error code of a replica that cannot load the adapter of a request.
ADAPTER_UNAVAILABLE = "adapter_unavailable"


class Adapter(msgspec.Struct, frozen=True):
    """An adapter: its `name` for clients, the `digest` of its files, and its `source`: a folder, a
    Hugging Face id with a commit (`acme/sql@<commit>`) or a URL."""

    name: str
    digest: str
    source: str

    @property
    def engine_name(self) -> str:
        return f"{self.name}@{self.digest}"

    def to_header(self) -> str:
        return json.dumps(msgspec.to_builtins(self))  # headers must be ASCII

    @classmethod
    def from_header(cls, header: bytes) -> Adapter:
        """Parse a header. Raises ValueError: when it is not an `Adapter`."""
        return _adapter(header)


_adapter = msgspec.json.Decoder(Adapter).decode
