"""Who may use the API: a bearer key names a tenant, and what of its rights the key has.

A key has the least of what its tenant may (`gateway.tenants` of the fleet file) and of what stands
with it in the keys file, which gateways follow (`keys_file` says what is in it). Revoking fails
closed: what cannot be read of the file opens nothing, an empty file opens to nobody but the keys
that the environment gave, and an id that was revoked once stays so while the process lives. Only a
file that cannot be read at all changes nothing; that, and every line left out, is in the log
and by `stale`.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import Problem
from common.loops import forever
from deployments.fleet.fleet import GatewaySettings
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.keys_file import (
    KeyRights,
    StoredKey,
    digest_of,
    id_of,
    keys_of,
    plain_keys,
    stored,
    written,
)

logger = logging.getLogger("ray.serve")

KEYS_FILE = "ANTEFIX_API_KEYS_FILE"
# Kubernetes brings a changed Secret within about a minute.
READ_PERIOD_S = 5.0
WRONG_KEYS_PERIOD_S = 60.0
ADDRESSES_KEPT = 256
ADDRESSES_TOLD = 5


@dataclass(frozen=True)
class KeyHolder:
    """Whose key a request has, and what of the tenant's rights the key has.

    `alone`: no other tenant has a key, so there is nothing of others to hide.
    """

    tenant: str
    rights: KeyRights
    alone: bool = field(default=False, compare=False)

    def is_operator(self, settings: GatewaySettings) -> bool:
        return self.rights.operator and settings.is_operator(self.tenant)

    def check_operator(self, settings: GatewaySettings, may: str) -> None:
        """Raise ApiError 403 for any other; `may`: what only operators may do."""
        if not self.is_operator(settings):
            raise ApiError(
                403,
                f"Only operators {may}. Use an operator's key, or set "
                f"`gateway.tenants.{self.tenant}.operator: true` in the fleet file.",
                code="not_an_operator",
            )

    def sees_loads(self, settings: GatewaySettings) -> bool:
        """Whether it sees addresses, and what keeps replicas busy."""
        return self.is_operator(settings) or (self.alone and self.rights.operator)

    def rights_in(self, settings: GatewaySettings) -> KeyRights:
        """The least of the key's and its tenant's."""
        own, of_tenant = self.rights, settings.priority_of(self.tenant)
        batch = "batch" in (own.priority, of_tenant)
        return KeyRights(
            own.models,
            "batch" if batch else "interactive",
            own.overflow,
            own.policy and (self.sees_loads(settings) or settings.may_choose_policy(self.tenant)),
            self.is_operator(settings),
        )


class ApiKeys:
    """The keys a gateway accepts, kept as salted hashes so that no dump of it holds a key.

    `given` maps keys to tenants; those of a file come beside them. `stale`: what of the file is
    wrong, sentence fragments for an operator.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        keys = (stored(tenant, key, plain=True) for key, tenant in given.items())
        self._given = {key.id: key for key in keys}
        self._use(self._given)
        self._revoked: set[str] = set()
        self._nobody = stored("", "")
        self.stale: tuple[str, ...] = ()

    @property
    def tenants(self) -> set[str]:
        """All that have a key."""
        return {key.tenant for key in self._keys.values()}

    def check(self, headers: Mapping[str, str]) -> KeyHolder:
        """Whose key this is: in `Authorization`, or in `x-api-key` as clients of Anthropic's API
        have it. Raises ApiError 401."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and bool(key.strip())
        given = (key if is_bearer else headers.get("x-api-key", "")).strip()
        if not given:
            message = (
                "The request has no API key. Send the header 'Authorization: Bearer YOUR_KEY',"
                " or 'x-api-key: YOUR_KEY'."
            )
            raise ApiError(401, message, code="missing_api_key")
        found = self._keys.get(id_of(given), self._nobody)
        # before anything else is known of it: an id alone is no secret
        if not hmac.compare_digest(found.digest, digest_of(found.salt, given)):
            message = "The API key is not known here. Ask the operators for a valid one."
            raise ApiError(401, message, code="invalid_api_key")
        if found.revoked is not None or found.id in self._revoked:
            message = "The API key was revoked. Ask the operators for a new one."
            raise ApiError(401, message, code="revoked_api_key")
        if found.expires is not None and time.time() >= found.expires:
            message = (
                f"The API key expired at {written(found.expires)}. Ask the operators for a new one."
            )
            raise ApiError(401, message, code="expired_api_key")
        return KeyHolder(found.tenant, found.rights, self._alone)

    async def follow(self, file: Path, period_s: float = READ_PERIOD_S) -> None:
        """Take the keys of `file` whenever it has others, until cancelled."""

        async def take() -> None:
            self.take(file)

        fails = "the API keys stay as they are"
        await forever("api_keys", take, period_s, fails=fails, logger=logger)

    def take(self, file: Path) -> None:
        """The keys that stand in the file now; never raises."""
        try:
            keys, faults = keys_of(read_text(file))
        except Problem as error:
            self._told((f"{error.message}, and the keys stay as they are",))
            return
        self._revoked |= {key.id for key in keys.values() if key.revoked is not None}
        again = sorted(id for id in self._revoked & keys.keys() if keys[id].revoked is None)
        faults += [f"the API key {id} was revoked, and stays so" for id in again]
        self._use({**self._given, **keys})
        self._told(tuple(faults))

    def _use(self, keys: Mapping[str, StoredKey]) -> None:
        self._keys = keys
        self._alone = len({key.tenant for key in keys.values()}) == 1

    def _told(self, faults: tuple[str, ...]) -> None:
        for fault in faults:
            if fault not in self.stale:
                logger.warning("the keys file: %s", fault)
        self.stale = faults


class WrongKeys:
    """Requests whose key opens nothing: a line a minute in the log, with who sent the most.

    Nobody is kept from trying again: docs/security.md says why.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at = float("-inf")
        self._by_address: Counter[str] = Counter()

    def came_from(self, address: str) -> None:
        kept = address in self._by_address or len(self._by_address) < ADDRESSES_KEPT
        self._by_address[address if kept else "other addresses"] += 1
        if (now := self._clock()) - self._told_at >= WRONG_KEYS_PERIOD_S:
            most = self._by_address.most_common(ADDRESSES_TOLD)
            senders = ", ".join(f"{name[:64]} ({count})" for name, count in most)
            number = self._by_address.total()
            logger.warning(
                "requests with a wrong API key: %d, most of them from %s", number, senders
            )
            self._told_at = now
            self._by_address.clear()


def given_in(text: str) -> dict[str, str]:
    """Key to tenant, of `tenant=key` on lines or between commas.

    Raises Problem for the first thing that is wrong; no message holds a key.
    """
    keys, faults = keys_of(text)
    if any(not key.plain for key in keys.values()):
        faults.append(f"salted hashes of API keys belong into a file: name it in {KEYS_FILE}")
    if faults:
        raise Problem(faults[0], "")
    return plain_keys(text)


def read_text(file: Path) -> str:
    """Bytes that are no UTF-8 make their line a wrong one. Raises Problem."""
    try:
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        why = error.strerror or "it is no file"
        raise Problem(f"{file} cannot be read: {why}", f"correct {KEYS_FILE}") from error


def check_file(file: Path) -> None:
    """Raises Problem for a file that cannot be read, or opens to nobody because of its faults."""
    keys, faults = keys_of(read_text(file))
    if faults and not keys:
        raise Problem(f"{file} holds no usable API key: {faults[0]}", "")
