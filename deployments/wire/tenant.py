"""Whose request an engine serves: written by the gateway, read by limits in the replica.

A gateway sends a digest, so that names of tenants do not spread. Without the header, as from a
gateway of an earlier release, all requests are one tenant's. For paths whose requests have no
`cache_salt` in vLLM, it sends the salt as a header, too.
"""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2b

# The digest of the tenant whose request the current task serves.
current: ContextVar[str] = ContextVar("tenant", default="")
# The salt of the request's cached prompt; empty where its body has it.
salt: ContextVar[str] = ContextVar("salt", default="")


def digest(tenant: str) -> str:
    text = tenant.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=8, person=b"antefix tenant").hexdigest()
