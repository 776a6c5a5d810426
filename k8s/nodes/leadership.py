"""Leader election: only the process named in a Kubernetes Lease writes.

The leader knows how long it may write. It asks `holds` before each write and uses an `impatient`
client, so each write ends before another process can hold the Lease. If it is killed, another takes
over LEASE_S after its last renewal. Nothing here raises while Kubernetes is unavailable.
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
    """Leadership of this process. It may write for LEASE_S after its last renewal of the Lease."""

    def __init__(self, api: client.ApiClient, lease: str, namespace: str, identity: str) -> None:
        lock = LeaseLock(lease, namespace, identity)  # type: ignore[no-untyped-call]
        lock.api_instance = client.CoordinationV1Api(api)
        # Only its decision is used: its loop would wait forever for a response that never comes.
        self._election = LeaderElection(  # type: ignore[no-untyped-call]
            Config(lock, LEASE_S, 0.8 * LEASE_S, LEASE_S / 3, _nothing, _nothing)  # type: ignore[no-untyped-call]
        )
        self._lease = lease
        self._ends = float("-inf")
        self._led: bool | None = None

    def renew(self) -> bool:
        """Request the Lease, and return whether this process leads."""
        asked, leads = time.monotonic(), False
        try:
            leads = bool(self._election.try_acquire_or_renew())  # type: ignore[no-untyped-call]
        except KUBERNETES_FAILURES as error:
            logger.warning("failed to request Lease %s: %s", self._lease, said(error))
        # a request that starts before this time ends before the Lease does
        self._ends = asked + LEASE_S - TIMEOUT_S if leads else float("-inf")
        if leads != self._led:
            if leads:
                logger.info("acquired Lease %s", self._lease)
            else:
                logger.info(
                    "does not hold Lease %s: another pod does, or this one may not write it",
                    self._lease,
                )
        self._led = leads
        return leads

    def holds(self) -> bool:
        return time.monotonic() < self._ends


def said(error: Exception) -> str:
    """Return the error in one line. An ApiException also contains the response's headers."""
    return " ".join(str(getattr(error, "body", None) or error).split())


def _nothing() -> None:
    """Callbacks of the election, which are not needed."""


class _Impatient(RESTClientObject):
    """Wait TIMEOUT_S for an answer. The client itself would wait forever."""

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
    """Return the same client with a timeout and without retries."""
    api.configuration.retries = False
    api.rest_client = _Impatient(api.configuration)
    return api
