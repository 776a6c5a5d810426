"""Who may use the API: a bearer key names a tenant."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from deployments.errors import ApiError


class ApiKeys:
    """The keys a gateway accepts, kept as digests so that no dump of it holds a key."""

    def __init__(self, tenant_by_key: Mapping[str, str]) -> None:
        self._tenant_by_digest = {_digest(key): t for key, t in tenant_by_key.items()}

    def check(self, headers: Mapping[str, str]) -> str:
        """The tenant whose key this is. Raises ApiError 401."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "no API key: send the header 'Authorization: Bearer YOUR_KEY'"
            raise ApiError(401, message, code="missing_api_key")
        given = _digest(key.strip())
        for digest, tenant in self._tenant_by_digest.items():
            if hmac.compare_digest(digest, given):
                return tenant
        raise ApiError(401, "the API key is not known here", code="invalid_api_key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
