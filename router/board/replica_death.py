"""Why a replica ended, as its watchdog reports it to gateways through Redis.

The key is `death:<replica>` on the board of the fleet (`router.redis.redis_keys`). Its value is
signed (`router.redis.signature`), and expires after KEPT_S.

Without a report, gateways assume another cause than a lack of memory.
"""

from __future__ import annotations

from router.redis import redis_keys

OUT_OF_MEMORY, OTHER_CAUSE = b"out of memory", b"other"
KEPT_S = 60


def death_key(fleet: str, replica_id: str) -> str:
    """Return the key for a replica. `fleet`: the fleet's board, in any of its clusters."""
    return redis_keys.key(fleet.partition("@")[0], f"death:{replica_id}")
