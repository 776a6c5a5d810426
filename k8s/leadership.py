"""One of several processes at a time writes: the one whose name a Lease of Kubernetes holds.

A process that leads knows how long it may: each of its writes ends before the Lease can be
another's, as long as it asks `holds` before it and its client is `impatient`. One that is killed
is followed LEASE_S after it last wrote its name. Nothing here raises while Kubernetes is away.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTClientObject
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

logger = logging.getLogger("antefix.leadership")

LEASE_S = 45
TIMEOUT_S = 5.0
KUBERNETES_FAILURES = (ApiException, urllib3.exceptions.HTTPError)


class Leadership:
    """Whether this process may write. It may for LEASE_S after it last wrote its name."""

    def __init__(self, api: client.ApiClient, lease: str, namespace: str, identity: str) -> None:
        lock = LeaseLock(lease, namespace, identity)  # type: ignore[no-untyped-call]
        lock.api_instance = client.CoordinationV1Api(api)
        # Only its decision is used: its own loop waits for ever when an answer does not come.
        self._election = LeaderElection(  # type: ignore[no-untyped-call]
            Config(lock, LEASE_S, 0.8 * LEASE_S, LEASE_S / 3, _nothing, _nothing)  # type: ignore[no-untyped-call]
        )
        self._lease = lease
        self._ends = float("-inf")
        self._led: bool | None = None

    def renew(self) -> bool:
        """Whether it leads, having asked for it."""
        asked, leads = time.monotonic(), False
        try:
            leads = bool(self._election.try_acquire_or_renew())  # type: ignore[no-untyped-call]
        except KUBERNETES_FAILURES as error:
            logger.warning("the Lease %s cannot be requested: %s", self._lease, said(error))
        # a request that begins before this ends before the Lease does
        self._ends = asked + LEASE_S - TIMEOUT_S if leads else float("-inf")
        if leads != self._led:
            why_not = "does not lead: another pod does, or this one may not write the Lease"
            logger.info("%s %s", "leads, by the Lease" if leads else why_not, self._lease)
        self._led = leads
        return leads

    def holds(self) -> bool:
        return time.monotonic() < self._ends


def said(error: Exception) -> str:
    """In one line: what an ApiException says by itself has the answer's headers too."""
    return " ".join(str(getattr(error, "body", None) or error).split())


def _nothing() -> None:
    """What the election would call."""


class _Impatient(RESTClientObject):
    """Waits TIMEOUT_S for an answer: the client by itself waits for ever."""

    def request(
        self,
        method: Any,
        url: Any,
        headers: Any = None,
        body: Any = None,
        post_params: Any = None,
        _request_timeout: Any = None,
    ) -> Any:
        within_s = _request_timeout or TIMEOUT_S
        return super().request(method, url, headers, body, post_params, within_s)  # type: ignore[no-untyped-call]


def impatient(api: client.ApiClient) -> client.ApiClient:
    """The same client, with a timeout and no retries of its own."""
    api.configuration.retries = False
    api.rest_client = _Impatient(api.configuration)
    return api
