"""The tenant and the cache salt of a request, which the gateway sends in headers.

Limits in the replica use the tenant. It is a digest, so tenants' names stay in the gateway. Without
the header, as from an earlier release, all requests belong to one tenant. The salt is a header for
paths whose requests have no field `cache_salt` in vLLM.
"""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2b

# The digest of the tenant whose request the current task serves.
current: ContextVar[str] = ContextVar("tenant", default="")
# The salt of the request's cached prompt; empty if the salt is in the body.
salt: ContextVar[str] = ContextVar("salt", default="")


def digest(tenant: str) -> str:
    text = tenant.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=8, person=b"antefix tenant").hexdigest()
