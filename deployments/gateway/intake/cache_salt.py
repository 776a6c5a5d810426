"""Cache salts: requests can share cached prompts in an engine only if their salts are equal.

Each tenant has its own salt, or that of a group of tenants that share a cache on purpose. A salt
that the client sends divides it further. Salts are computed only here, with the fleet's secret, and
stored once, in `EngineRequest.cache_salt`. So the engine and the prefix index always use the same.

Source of the values that vLLM accepts: `validate_cache_salt` in
vllm/entrypoints/generate/base/protocol.py of 0.32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from deployments.gateway.api.request_codes import INVALID_CACHE_SALT
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import inference_path


class CacheSalts:
    """The salts of one fleet. Without its secret, they reveal nothing, not even the tenant."""

    def __init__(self, engine_secret: str) -> None:
        key = blake2b(engine_secret.encode(), person=b"antefix salt").digest()
        self._hash = blake2b(key=key, digest_size=16, person=b"afx cache salt")

    def of(
        self, path: str, tenant: str, group: str | None, fields: Mapping[str, Any]
    ) -> str | None:
        """Return the salt of a tenant's request; None if its path caches nothing.

        A group and a tenant of the same name share nothing. Raises ApiError 400 for an invalid
        `cache_salt`.
        """
        if not inference_path(path).is_salted:
            return None
        salt = fields.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt):
            message = "'cache_salt' must be a non-empty string. Correct it, or omit it."
            raise ApiError(INVALID_CACHE_SALT, message, param="cache_salt")
        hash_ = self._hash.copy()
        hash_.update(json.dumps([group, None if group else tenant, salt]).encode())
        return hash_.hexdigest()
