"""Whose requests may find each other's prompts in an engine's cache: those of one salt.

A tenant's requests have a salt of the tenant's own, or of the group of tenants that share a cache
on purpose; one that the client sends parts them further. It is made here alone, with a key of the
fleet's, and kept once, as `EngineRequest.cache_salt`: what the engine gets and what the prefix
index is asked for cannot differ. Source of what vLLM takes: `validate_cache_salt` in
vllm/entrypoints/generate/base/protocol.py of 0.32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from deployments.gateway.intake.errors import ApiError
from deployments.wire.inference_paths import inference_path


class CacheSalts:
    """The salts of one fleet. They tell who lacks its secret nothing, not even whose they are."""

    def __init__(self, engine_secret: str) -> None:
        key = blake2b(engine_secret.encode(), person=b"antefix salt").digest()
        self._hash = blake2b(key=key, digest_size=16, person=b"afx cache salt")

    def of(
        self, path: str, tenant: str, group: str | None, fields: Mapping[str, Any]
    ) -> str | None:
        """The salt of a tenant's request; None where nothing is cached. Raises ApiError 400.

        A group may be called as a tenant: they share nothing.
        """
        if not inference_path(path).is_salted:
            return None
        salt = fields.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt):
            message = (
                "'cache_salt' must be a string that is not empty. Correct it, or leave it out."
            )
            raise ApiError(400, message, code="invalid_cache_salt", param="cache_salt")
        hash_ = self._hash.copy()
        hash_.update(json.dumps([group, None if group else tenant, salt]).encode())
        return hash_.hexdigest()
