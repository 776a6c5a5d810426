"""Who may use the API: a bearer key names a tenant."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from common.errors import Problem
from deployments.gateway.errors import ApiError

logger = logging.getLogger("ray.serve")

KEYS_FILE = "ANTEFIX_API_KEYS_FILE"
# Kubernetes brings a changed Secret within about a minute.
READ_PERIOD_S = 5.0


class ApiKeys:
    """The keys a gateway accepts, kept as digests so that no dump of it holds a key."""

    def __init__(self, tenant_by_key: Mapping[str, str]) -> None:
        self._take(tenant_by_key)

    def check(self, headers: Mapping[str, str]) -> str:
        """The tenant whose key this is. Raises ApiError 401."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = (
                "The request has no API key. Send the header 'Authorization: Bearer YOUR_KEY'."
            )
            raise ApiError(401, message, code="missing_api_key")
        given = _digest(key.strip())
        for digest, tenant in self._tenant_by_digest.items():
            if hmac.compare_digest(digest, given):
                return tenant
        message = "The API key is not known here. Ask the operators for a valid one."
        raise ApiError(401, message, code="invalid_api_key")

    async def follow(self, file: Path, period_s: float = READ_PERIOD_S) -> None:
        """Take the keys of `file` whenever it has others, until cancelled.

        A file that cannot be used changes nothing: half a rotation must not lock everybody out.
        """
        complaint = ""
        while True:
            try:
                self._take(read_keys(file))
                complaint = ""
            except Problem as error:
                if error.message != complaint:
                    logger.warning("the API keys stay as they are: %s", error.message)
                complaint = error.message
            await asyncio.sleep(period_s)

    def _take(self, tenant_by_key: Mapping[str, str]) -> None:
        self._tenant_by_digest = {_digest(key): t for key, t in tenant_by_key.items()}


def keys_in(text: str) -> dict[str, str]:
    """Key to tenant, of `tenant=key` on lines or between commas; a tenant may have several.

    Raises Problem for what is neither that nor a comment; no message holds a key.
    """
    found = {}
    for number, pair in enumerate(re.split(r"[\n,]", text), start=1):
        if not pair.strip() or pair.lstrip().startswith("#"):
            continue
        tenant, _, key = (part.strip() for part in pair.partition("="))
        if not tenant or not key:
            message = f"API key {number} is not tenant=key"
            raise Problem(message, "write tenant=key, several on lines or between commas")
        found[key] = tenant
    return found


def read_keys(file: Path) -> dict[str, str]:
    """Raises Problem for a file that cannot be read, or holds no key."""
    try:
        found = keys_in(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise Problem(f"{file} cannot be read: {reason}", f"correct {KEYS_FILE}") from error
    if not found:
        raise Problem(f"{file} holds no API key", "write tenant=key into it")
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
