"""The format of API keys in a text, and how keys are generated.

    tenant=KEY                              a plain key, with all rights of its tenant
    tenant=sha256:ID:SALT:HASH name=value   a key's salted hash, with its limits

Entries are on lines or between commas; `#` begins a comment. A limit is `models=a|b`
(percent-encoded), `priority=batch`, `overflow=no`, `policy=no`, `operator=no`, or `expires=` or
`revoked=` with a UTC time.

SHA-256 suffices, because generated keys have 256 random bits and cannot be guessed at any speed. A
slow hash would delay each request, whose check takes microseconds. Keys are looked up by id, which
is not secret. Generated keys contain it; for other keys it is computed from a hash.

Faults grant no access. Invalid lines, short keys, keys with two meanings, and limits that this
release does not know are omitted and reported, without the key. An id that is revoked on any line
is revoked.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast
from urllib.parse import quote, unquote

from autoscaling.slo import PriorityClass
from deployments.gateway.api.key_codes import MODEL_NOT_ALLOWED
from deployments.gateway.intake.api_errors import ApiError

MIN_KEY_CHARACTERS = 16
_GENERATED = re.compile(r"afx_([0-9a-f]{12})_[0-9A-Za-z]{43}")
_HASHED = re.compile(r"sha256:([0-9a-f]{12}):([0-9a-f]{32}):([0-9a-f]{64})((?: +\S+)*)")
_HASHED_MARK = "sha256:"
_LETTERS = string.ascii_letters + string.digits
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_TWO = "has two tenants or rights, so it is not valid: keep one of its lines"
_TWICE = "is listed twice: keep one of its lines"
_LIMITS = ("models", "priority", "overflow", "policy", "operator", "expires", "revoked")


@dataclass(frozen=True)
class KeyRights:
    """A key's rights, within those of its tenant. `models` None: every model."""

    models: frozenset[str] | None = None
    priority: PriorityClass = "interactive"
    overflow: bool = True
    policy: bool = True
    operator: bool = True

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Raises ApiError 403 for a model that the key may not use."""
        if not self.may_use(model):
            message = (
                f"This key may not use the model {model[:100]!r}. Use another model, or ask the"
                " operators for a key that may."
            )
            raise ApiError(MODEL_NOT_ALLOWED, message, param="model")


@dataclass(frozen=True, repr=False)
class StoredKey:
    """A key's salted hash and rights.

    `expires` and `revoked`: Unix times; None: never. `plain`: its line has the plain key. Compare
    `meaning` rather than keys, whose salts differ.
    """

    id: str
    tenant: str
    rights: KeyRights
    expires: float | None
    revoked: float | None
    plain: bool
    salt: bytes
    digest: bytes

    def line(self) -> str:
        """Return the key's line for a file."""
        rights, limits = self.rights, []
        if rights.models is not None:
            names = "|".join(quote(model, safe="/:._-") for model in sorted(rights.models))
            limits.append(f"models={names}")
        if rights.priority != "interactive":
            limits.append(f"priority={rights.priority}")
        denied = [n for n in ("overflow", "policy", "operator") if not getattr(rights, n)]
        limits += [f"{name}=no" for name in denied]
        for name, at in (("expires", self.expires), ("revoked", self.revoked)):
            if at is not None:
                limits.append(f"{name}={written(at)}")
        hashed = f"{_HASHED_MARK}{self.id}:{self.salt.hex()}:{self.digest.hex()}"
        return f"{self.tenant}={' '.join((hashed, *limits))}"

    @property
    def meaning(self) -> tuple[object, ...]:
        return self.tenant, self.rights, self.expires


@dataclass(frozen=True)
class Entry:
    """One entry of a text. `key` None: `fault` says why the entry is not valid."""

    text: str
    key: StoredKey | None
    fault: str = ""


def new_key() -> str:
    """Return a random key, afx_ID_SECRET, with 256 random bits after its id."""
    return f"afx_{secrets.token_hex(6)}_{''.join(secrets.choice(_LETTERS) for _ in range(43))}"


def id_of(key: str) -> str:
    """Return a key's id, 12 hexadecimal digits."""
    generated = _GENERATED.fullmatch(key)
    return generated.group(1) if generated else hashlib.sha256(_bytes(key)).hexdigest()[:12]


def digest_of(salt: bytes, key: str) -> bytes:
    return hashlib.sha256(salt + _bytes(key)).digest()


def stored(
    tenant: str,
    key: str,
    rights: KeyRights = KeyRights(),  # frozen
    expires: float | None = None,
    plain: bool = False,
) -> StoredKey:
    """Return the key's salted hash, with a new salt."""
    salt = os.urandom(16)
    return StoredKey(id_of(key), tenant, rights, expires, None, plain, salt, digest_of(salt, key))


def entries_of(text: str) -> Iterator[Entry]:
    """Yield the entries of a text in order, without comments and blank lines.

    If a key is listed twice with one meaning, the second is a fault; with two meanings, both are.
    """
    entries = [_entry(number, part) for number, part in enumerate(_parts(text), start=1) if part]
    by_id: dict[str, list[StoredKey]] = {}
    for entry in entries:
        if entry.key is not None:
            by_id.setdefault(entry.key.id, []).append(entry.key)
    for entry in entries:
        yield entry if entry.key is None else _judged(entry, entry.key, by_id[entry.key.id])


def keys_of(text: str) -> tuple[dict[str, StoredKey], list[str]]:
    """Return the keys by id, including revoked and expired ones, and the faults of the others."""
    keys, faults = {}, []
    for entry in entries_of(text):
        if entry.key is not None:
            keys[entry.key.id] = entry.key
        else:
            faults.append(entry.fault)
    return keys, faults


def with_key(text: str, key: StoredKey) -> str:
    """Return the text with this key's line in place of its old one, or at the end."""
    old = next((e.text for e in entries_of(text) if e.key is not None and e.key.id == key.id), None)
    lines = []
    for line in text.splitlines():
        parts = [part.strip() for part in _of_line(line.strip())]
        if old in parts:
            lines += [key.line() if part == old else part for part in parts if part]
        else:
            lines.append(line)
    return "\n".join([*lines, *([] if old else [key.line()]), ""])


def plain_keys(text: str) -> dict[str, str]:
    """Return the tenant of each plain key. Clients can send such a key."""
    tenants = {}
    for part in _parts(text):
        tenant, _, key = (piece.strip() for piece in part.partition("="))
        if tenant and key and not key.startswith(_HASHED_MARK):
            tenants[key] = tenant
    return tenants


def written(at: float) -> str:
    """Return a Unix time as text, in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime(_TIME)


def _judged(entry: Entry, key: StoredKey, same: list[StoredKey]) -> Entry:
    if len(same) == 1:
        return entry
    revoked = next((other for other in same if other.revoked is not None), None)
    first = revoked or same[0]
    if key is first:
        if revoked or all(other.meaning == key.meaning for other in same):
            return entry
        return replace(entry, key=None, fault=f"the API key {key.id} {_TWO}")
    return replace(entry, key=None, fault=f"the API key {key.id} {_TWICE}")


def _parts(text: str) -> list[str]:
    """Return the text's parts between line ends and commas; "" for a comment, never split."""
    lines = (line.strip() for line in text.splitlines())
    parts = (part.strip() for line in lines for part in _of_line(line))
    return ["" if part.startswith("#") else part for part in parts]


def _of_line(line: str) -> list[str]:
    return [line] if line.startswith("#") else line.split(",")


def _entry(number: int, part: str) -> Entry:
    tenant, _, value = (piece.strip() for piece in part.partition("="))
    if not tenant or not value:
        fault = f"API key {number} is not tenant=key: write that, on lines or between commas"
        return Entry(part, None, fault)
    if value.startswith(_HASHED_MARK):
        key = _hashed(tenant, value)
        fault = f"API key {number} is not a salted hash that this release can read: recreate it"
        return Entry(part, key, "" if key else fault)
    wrong = ""
    if len(value) < MIN_KEY_CHARACTERS:
        wrong = f"is shorter than {MIN_KEY_CHARACTERS} characters"
    elif not (value.isascii() and value.isprintable()):
        wrong = "has characters that HTTP headers cannot have"
    if wrong:
        fault = f"API key {number} {wrong}: make another with antefix key create"
        return Entry(part, None, fault)
    return Entry(part, stored(tenant, value, plain=True))


def _hashed(tenant: str, value: str) -> StoredKey | None:
    found = _HASHED.fullmatch(value)
    if found is None:
        return None
    pairs = [limit.partition("=") for limit in found.group(4).split()]
    limits = {name: value for name, _, value in pairs}
    if len(limits) != len(pairs) or not limits.keys() <= set(_LIMITS):
        return None
    try:
        rights = KeyRights(
            frozenset(map(unquote, limits["models"].split("|"))) if "models" in limits else None,
            cast(PriorityClass, _word(limits, "priority", ("interactive", "batch"))),
            *(_word(limits, name, ("yes", "no")) == "yes" for name in _LIMITS[2:5]),
        )
        expires, revoked = (_time(limits, name) for name in _LIMITS[5:])
    except ValueError:
        return None
    key_id, salt, digest = (found.group(place) for place in (1, 2, 3))
    salted = bytes.fromhex(salt), bytes.fromhex(digest)
    return StoredKey(key_id, tenant, rights, expires, revoked, False, *salted)


def _word(limits: Mapping[str, str], name: str, words: tuple[str, str]) -> str:
    """Return the given word; by default the first. Raises ValueError if it is not in `words`."""
    return words[words.index(limits.get(name, words[0]))]


def _time(limits: Mapping[str, str], name: str) -> float | None:
    given = limits.get(name)
    if given is None:
        return None
    return datetime.strptime(given, _TIME).replace(tzinfo=UTC).timestamp()


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
