"""Signatures of the values that processes of a fleet exchange through Redis.

    <32 hexadecimal digits> <value>

The digits are a keyed BLAKE2b of the key's whole name and the value. So a value is valid for one
board, one fleet, one schema and one kind only. Without the engine secret a Redis client can delete
a value or restore an earlier one, but cannot create one. A value that does not verify counts as
missing: it is counted in `forged`, and one in LOG_EVERY of a key is logged. Nothing here raises.
"""

from __future__ import annotations

import hmac
import logging
from collections import Counter
from hashlib import blake2b

from router.redis import redis_keys

logger = logging.getLogger("ray.serve")

LOG_EVERY = 1000
_DIGEST_BYTES = 16
_DIGITS = 2 * _DIGEST_BYTES

KINDS = ("settings", "active", "decided", "demand", "placed")
forged: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
"""Number of values that this process has ignored, by the kind of their key."""

_of_keys: Counter[str] = Counter()


class Signer:
    """Signs for the fleet with this engine secret. It can be pickled, and does not show the
    secret."""

    def __init__(self, engine_secret: str) -> None:
        self._key = blake2b(
            engine_secret.encode(), digest_size=32, person=b"antefix redis"
        ).digest()

    def hash_of(self, name: str) -> blake2b:
        """Return a hash with this fleet's key that has taken in a name."""
        name_bytes = name.encode()
        start = b"%d " % len(name_bytes) + name_bytes
        return blake2b(start, key=self._key, digest_size=_DIGEST_BYTES, person=b"afx signature")

    def digest(self, key: str, value: bytes) -> bytes:
        """Return the 16 bytes that sign a value of that key."""
        hash_ = self.hash_of(key)
        hash_.update(value)
        return hash_.digest()


def signed(signer: Signer | None, key: str, value: str) -> str:
    """Return what to write at the key; without a signer, the value itself."""
    return value if signer is None else f"{signer.digest(key, _bytes(value)).hex()} {value}"


def opened(signer: Signer | None, key: str, text: str) -> str | None:
    """Return the value in the text read at the key; None, and counted, if it does not verify.

    Without a signer every text is a value.
    """
    if signer is None:
        return text
    value = text[_DIGITS + 1 :]
    genuine = signer.digest(key, _bytes(value)).hex()
    # as bytes: the text may be anything
    if hmac.compare_digest(_bytes(text[: _DIGITS + 1]), f"{genuine} ".encode()):
        return value
    count_forged(key)
    return None


def signed_bytes(signer: Signer | None, key: str, value: bytes) -> bytes:
    """Sign like `signed`; the digest is the 16 bytes before the value."""
    return value if signer is None else signer.digest(key, value) + value


def opened_bytes(signer: Signer | None, key: str, data: bytes) -> bytes | None:
    """Open like `opened`, for `signed_bytes`."""
    if signer is None:
        return data
    digest, value = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hmac.compare_digest(digest, signer.digest(key, value)):
        return value
    count_forged(key)
    return None


def count_forged(key: str) -> None:
    """Count, and log occasionally, that the value at a key is not the fleet's newest."""
    forged[redis_keys.kind_of(key)] += 1
    _of_keys[key] += 1
    if _of_keys[key] % LOG_EVERY != 1:
        return
    logger.error(
        "ignored a value at %s in Redis that this fleet did not write, or that is old: check "
        "who can write to this Redis, and whether all processes have the same engine secret",
        key,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
