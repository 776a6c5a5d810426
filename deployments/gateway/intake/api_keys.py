"""API keys: a bearer key identifies a tenant and the rights that it has.

A key's rights are limited by its tenant (`gateway.tenants` of the fleet file) and by its line in
the keys file. `keys_file` describes the format. Gateways reread the file every 5 s.

Revocation fails closed. An invalid line grants no access. An empty file leaves only the keys from
the environment. A revoked id stays revoked while the process lives. However, an unreadable file
changes nothing. The log and `stale` report that, and every omitted line.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import Problem
from common.loops import forever
from deployments.fleet.fleet import GatewaySettings
from deployments.gateway.api.key_codes import (
    EXPIRED_API_KEY,
    INVALID_API_KEY,
    MISSING_API_KEY,
    NOT_AN_OPERATOR,
    REVOKED_API_KEY,
)
from deployments.gateway.api.request_headers import API_KEY_HEADER, AUTHORIZATION
from deployments.gateway.intake.api_errors import ApiError
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
# Kubernetes updates a mounted Secret within about a minute.
READ_PERIOD_S = 5.0
WRONG_KEYS_PERIOD_S = 60.0
ADDRESSES_KEPT = 256
ADDRESSES_LOGGED = 5


@dataclass(frozen=True)
class KeyHolder:
    """The tenant of a request's key, and the key's rights.

    `alone`: no other tenant has a key, so there is no other tenant's data to hide.
    """

    tenant: str
    rights: KeyRights
    alone: bool

    def is_operator(self, settings: GatewaySettings) -> bool:
        return self.rights.operator and settings.is_operator(self.tenant)

    def check_operator(self, settings: GatewaySettings, may: str) -> None:
        """Raises ApiError 403 for other keys; `may` is a verb phrase for the operators' right."""
        if not self.is_operator(settings):
            raise ApiError(
                NOT_AN_OPERATOR,
                f"Only operators {may}. Use an operator's key, or ask an operator to set "
                f"`gateway.tenants.{self.tenant}.operator: true` in the fleet file and to issue a"
                " key with `--operator`.",
            )

    def sees_loads(self, settings: GatewaySettings) -> bool:
        """Return whether the key may see replicas' addresses and loads."""
        return self.is_operator(settings) or (self.alone and self.rights.operator)

    def rights_in(self, settings: GatewaySettings) -> KeyRights:
        """Return the rights that both the key and its tenant have."""
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
    """The keys that a gateway accepts, as salted hashes so that no memory dump contains a key.

    `given` maps keys to tenants; a file may add others. `clock`: Unix time. `stale`: the file's
    faults, as sentence fragments for operators.
    """

    def __init__(self, given: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        keys = (stored(tenant, key) for key, tenant in given.items())
        self._given = {key.id: key for key in keys}
        self._use(self._given)
        self._revoked: set[str] = set()
        self._unknown = stored("", "")
        self.stale: tuple[str, ...] = ()

    @property
    def tenants(self) -> set[str]:
        """All tenants that have a key."""
        return {key.tenant for key in self._keys.values()}

    def check(self, headers: Mapping[str, str]) -> KeyHolder:
        """Return the holder of a request's key. Raises ApiError 401.

        The key is in `Authorization`, or in `x-api-key` as clients of Anthropic's API send it.
        """
        scheme, _, key = headers.get(AUTHORIZATION, "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and bool(key.strip())
        given = (key if is_bearer else headers.get(API_KEY_HEADER, "")).strip()
        if not given:
            message = (
                "The request has no API key. Send the header 'Authorization: Bearer YOUR_KEY',"
                " or 'x-api-key: YOUR_KEY'."
            )
            raise ApiError(MISSING_API_KEY, message)
        found = self._keys.get(id_of(given), self._unknown)
        # first, so that errors reveal nothing about a key from its id, which is no secret
        if not hmac.compare_digest(found.digest, digest_of(found.salt, given)):
            message = (
                "The API key is not valid. Check it for typos, or ask the operators for a new one."
            )
            raise ApiError(INVALID_API_KEY, message)
        if found.id in self._revoked:
            message = "The API key was revoked. Ask the operators for a new one."
            raise ApiError(REVOKED_API_KEY, message)
        if found.expires is not None and self._clock() >= found.expires:
            message = (
                f"The API key expired at {written(found.expires)}. Ask the operators for a new one."
            )
            raise ApiError(EXPIRED_API_KEY, message)
        return KeyHolder(found.tenant, found.rights, self._alone)

    async def follow(self, file: Path, period_s: float = READ_PERIOD_S) -> None:
        """Reload the keys from `file` every `period_s` seconds until cancelled."""

        async def take() -> None:
            self.take(file)

        fails = "failed to read the API keys; keeping the last ones"
        await forever("api_keys", take, period_s, fails=fails, logger=logger)

    def take(self, file: Path) -> None:
        """Use the keys that are in the file now. Never raises."""
        try:
            keys, faults = keys_of(read_text(file))
        except Problem as error:
            self._report((f"{error.message}, and the keys stay as they are",))
            return
        self._revoked |= {key.id for key in keys.values() if key.revoked is not None}
        again = sorted(id for id in self._revoked & keys.keys() if keys[id].revoked is None)
        faults += [f"the API key {id} was revoked, and stays revoked" for id in again]
        self._use({**self._given, **keys})
        self._report(tuple(faults))

    def _use(self, keys: Mapping[str, StoredKey]) -> None:
        self._keys = keys
        self._alone = len({key.tenant for key in keys.values()}) == 1

    def _report(self, faults: tuple[str, ...]) -> None:
        for fault in faults:
            if fault not in self.stale:
                logger.warning("found a fault in the keys file: %s", fault)
        self.stale = faults


class WrongKeys:
    """Counts requests with an invalid key, and logs once a minute which addresses sent most.

    It blocks no address: docs/security.md says why.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at = float("-inf")
        self._by_address: Counter[str] = Counter()

    def came_from(self, address: str) -> None:
        is_counted = address in self._by_address or len(self._by_address) < ADDRESSES_KEPT
        self._by_address[address if is_counted else "other addresses"] += 1
        if (now := self._clock()) - self._logged_at >= WRONG_KEYS_PERIOD_S:
            most = self._by_address.most_common(ADDRESSES_LOGGED)
            senders = ", ".join(f"{name[:64]} ({count})" for name, count in most)
            number = self._by_address.total()
            logger.warning(
                "rejected requests with a wrong API key: %d, most of them from %s", number, senders
            )
            self._logged_at = now
            self._by_address.clear()


def given_in(text: str) -> dict[str, str]:
    """Return the tenant of each key, from `tenant=key` on lines or between commas.

    Raises Problem for the first fault. No message contains a key.
    """
    keys, faults = keys_of(text)
    if any(not key.plain for key in keys.values()):
        faults.append(f"salted hashes of API keys belong in a file: name it in {KEYS_FILE}")
    if faults:
        raise Problem(faults[0], "")
    return plain_keys(text)


def read_text(file: Path) -> str:
    """Return the file's text. Bytes that are not UTF-8 make their line invalid. Raises Problem."""
    try:
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        why = error.strerror or "it is not a file"
        raise Problem(f"{file} cannot be read: {why}", f"correct {KEYS_FILE}") from error


def check_file(file: Path) -> None:
    """Raises Problem for a file that is unreadable, or that has faults and no usable key."""
    keys, faults = keys_of(read_text(file))
    if faults and not keys:
        raise Problem(f"{file} has no usable API key: {faults[0]}", "")
