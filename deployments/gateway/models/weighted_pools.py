"""Which of several pools a conversation belongs to, by their weights. Pure.

Rendezvous hashing with weights (Wang and Ravishankar 1998; Schindelhauer and Schomaker 2005): when
a weight changes, only the share that it changes by moves, and all gateways choose alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b

_MOST = 2**64


def chosen(weights: Mapping[str, float], conversation: bytes) -> str:
    """Return the name that the conversation leads to, each with a chance in proportion to its
    weight. Weights are at least 0, and one of them is above it."""
    return max(
        (name for name, weight in weights.items() if weight > 0),
        key=lambda name: (_score(name, weights[name], conversation), name),
    )


def _score(name: str, weight: float, conversation: bytes) -> float:
    salt = blake2b(name.encode(), digest_size=blake2b.SALT_SIZE).digest()
    digest = blake2b(conversation, digest_size=8, salt=salt).digest()
    # above 0 and at most 1
    share = (int.from_bytes(digest, "big") + 1) / (_MOST + 1)
    return -weight / math.log(share)
