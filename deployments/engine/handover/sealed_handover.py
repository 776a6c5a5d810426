"""Prefixes that one replica hands to another, encrypted with a key from the fleet's engine secret.

    GET HANDOVER_PATH     returns the replica's hot prefixes, as a Handover
    POST HANDOVER_PATH    gives the replica a Handover; returns what it took, as JSON of TakenOver

They contain tokens of prompts. A pass (`engine_pass`) that was read on the network opens the path
again, but what it returns cannot be read without the secret.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b

import msgspec
from cryptography.fernet import Fernet, InvalidToken

HANDOVER_PATH = "/antefix/handover"


class HandedPrefix(msgspec.Struct, frozen=True, array_like=True):
    """The tokens are packed (`router.index.segment_keys.pack`)."""

    tokens: bytes
    salt: str | None


class Handover(msgspec.Struct, frozen=True):
    """Prefixes in the host tier of the engine at `peer`, as host:port, the hottest first."""

    peer: str
    prefixes: tuple[HandedPrefix, ...]


class TakenOver(msgspec.Struct, frozen=True):
    """What a replica has taken from another one."""

    prefixes: int = 0
    tokens: int = 0


class HandoverSeal:
    """Encrypts and decrypts handovers of one fleet."""

    def __init__(self, engine_secret: str) -> None:
        key = blake2b(engine_secret.encode(), digest_size=32, person=b"antefix handover")
        self._fernet = Fernet(urlsafe_b64encode(key.digest()))

    def sealed(self, handover: Handover) -> bytes:
        return self._fernet.encrypt(msgspec.msgpack.encode(handover))

    def opened(self, body: bytes) -> Handover:
        """Return what was sealed. Raises ValueError if a replica of another fleet or of another
        release wrote it."""
        try:
            return msgspec.msgpack.decode(self._fernet.decrypt(body), type=Handover)
        except (InvalidToken, msgspec.MsgspecError) as error:
            raise ValueError("not a handover of this fleet") from error
