"""The names of all keys in Redis, and the schema number of their values.

    {afx:<fleet>.<id>}:<schema>:<name>          of a fleet
    {afx:<fleet>.<id>/<pool>}:<schema>:<name>   of a pool; `@<cluster>` follows the id where several
                                                clusters run one fleet
    {afx:<fleet>.<id>}:schemas                  the schemas in use; the same key in every release

The text between the braces is a board: Redis Cluster stores all keys of one board on one shard. The
id comes from the fleet's engine secret, so two fleets of one name never share a key. `SCHEMA`
changes with the form of any value, so two releases with different forms never share a key either.
Nothing here fails.
"""

from __future__ import annotations

from hashlib import blake2b

SCHEMA = 1
"""Increase it when a release reads or writes the value of any key in another form."""

_ID_BYTES = 4


def fleet_id(engine_secret: str) -> str:
    """Return eight hexadecimal digits that name a secret and reveal nothing about it."""
    key = blake2b(engine_secret.encode(), person=b"antefix fleet").digest()
    return blake2b(key=key, digest_size=_ID_BYTES, person=b"afx fleet id").hexdigest()


def key(board: str, name: str) -> str:
    """Return the key of that name, of a fleet or of a pool."""
    return f"{{afx:{board}}}:{SCHEMA}:{name}"


def schemas_key(board: str) -> str:
    """Return the one key without a schema: releases find each other's schemas there."""
    return f"{{afx:{board}}}:schemas"


def kind_of(redis_key: str) -> str:
    """Return the first word of a key's name, such as `slot` or `budgets`; "" for a foreign key."""
    _, _, rest = redis_key.partition("}:")
    return rest.partition(":")[2].partition(":")[0]


class BoardName(str):
    """The board of a pool: `<fleet>.<id>[@<cluster>]/<pool>`."""

    __slots__ = ()

    @classmethod
    def of(cls, fleet_board: str, pool: str) -> BoardName:
        """Return the board of a pool of the fleet with this board."""
        return cls(f"{fleet_board}/{pool}")

    @property
    def fleet_board(self) -> str:
        """The board of its fleet in this cluster."""
        return self.partition("/")[0]

    @property
    def fleet_name(self) -> str:
        """The fleet's name in the fleet file."""
        return self.fleet_board.partition("@")[0].partition(".")[0]

    @property
    def pool(self) -> str:
        """The pool's name in the fleet file."""
        return self.partition("/")[2]
