"""Access of `antefix k8s accept` to a release: its readiness, load, fleet, key and address."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import yaml
from pydantic import ValidationError

from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import GatewayClient
from cli.common.output import CommandError
from common.errors import Problem
from deployments.fleet.applications import fleet_of as data_of
from deployments.fleet.fleet import Fleet
from deployments.gateway.intake.keys_file import plain_keys
from k8s.client.cluster import Cluster, Object
from k8s.client.kubectl import Kubectl
from k8s.release import status
from k8s.release.acceptance import AcceptanceCheck, as_before, traffic_seen
from k8s.release.release import RAY, seen
from k8s.release.status import Report

_LOOK_AGAIN_S = 2.0


def _picture(cluster: Cluster, service: Object) -> Report:
    metadata = service["metadata"]
    now = cluster.get("rayservices", metadata["name"], RAY, metadata["namespace"])
    return status.report(seen(cluster, now or service))


def ready_release(cluster: Cluster, service: Object) -> Report:
    """Return the release's report. Raises CommandError if it is not ready."""
    picture = _picture(cluster, service)
    if not picture.is_ready:
        raise CommandError(
            f"{picture.name} in {picture.namespace} is not ready",
            "antefix k8s status shows the reason",
            ExitCode.NOT_READY,
        )
    return picture


def fleet_of(service: Object) -> Fleet:
    """Return the fleet without its Redis URL, which has no password in it. Raises Problem."""
    data = data_of(yaml.safe_load(service["spec"]["serveConfigV2"]))
    try:
        return Fleet.model_validate({key: value for key, value in data.items() if key != "redis"})
    except ValidationError as error:
        raise Problem(
            f"this version of Antefix cannot read the release's fleet: {error.errors()[0]['msg']}",
            "use the antefix command of the release's own version",
        ) from error


def key_of(cluster: Cluster, service: Object, fleet: Fleet) -> str:
    """Return an operator's API key if there is one: other keys do not see the load of replicas.
    Raises Problem."""
    pod = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    name = next(of["secret"]["secretName"] for of in pod["volumes"] if of["name"] == "auth")
    secret = cluster.get("secrets", name, namespace=service["metadata"]["namespace"]) or {}
    text = base64.b64decode(secret.get("data", {}).get("api-keys", "")).decode()
    keys = sorted(plain_keys(text).items(), key=lambda key: not fleet.gateway.is_operator(key[1]))
    if not keys:
        raise Problem(
            f"Secret {name} contains no API key in plain text",
            "add a line of the form tenant=key; antefix k8s accept also takes --api-key-file",
        )
    return keys[0][0]


@contextmanager
def address_of(
    base_url: str | None, kubectl: Kubectl, cluster: Cluster, service: Object
) -> Iterator[str]:
    """Yield the address of a gateway. Raises Problem."""
    if base_url is not None:
        yield base_url
        return
    metadata = service["metadata"]
    found = cluster.get("services", metadata["name"], namespace=metadata["namespace"]) or {}
    ports = [p["port"] for p in found.get("spec", {}).get("ports", ()) if p["name"] == "serve"]
    if not ports:
        raise Problem(f"Service {metadata['name']} has no port named 'serve'", "pass --base-url")
    with kubectl.forwarded(metadata["name"], ports[0]) as url:
        yield url


def idle_engines(client: GatewayClient, under_traffic: bool) -> Mapping[str, int]:
    """Return the number of active replicas by pool. Raises Problem if the release is in use."""
    pools = client.status()["pools"]
    if any(one["running"] is None for pool in pools.values() for one in pool["replicas"]):
        raise Problem(
            "a gateway does not report the load of its replicas",
            "pass an operator's key with --api-key-file, and check that Redis runs",
        )
    last = client.decisions(limit=1)
    ended = last[0]["at"] + last[0]["duration_s"] if last else 0.0
    # the gateway's clock may be ahead of this one
    idle_s = max(0.0, time.time() - ended) if last else None
    if not under_traffic and (why := traffic_seen(pools, idle_s)):
        raise Problem(
            f"the release is in use: {why}",
            "wait until it is idle, or pass --under-traffic",
        )
    return {
        name: sum(one["role"] == "active" for one in pool["replicas"])
        for name, pool in pools.items()
    }


def back_as_before(
    cluster: Cluster, service: Object, before: Report, within_s: float
) -> AcceptanceCheck:
    """Wait up to `within_s` seconds until as many pods are ready as `before`."""
    deadline = time.monotonic() + within_s
    wanted = {group.name: group.ready for group in (*before.groups, *before.beside)}
    while True:
        now = _picture(cluster, service)
        ready = {group.name: group.ready for group in (*now.groups, *now.beside)}
        check = as_before(wanted, ready, now.is_ready and now.active == before.active)
        if check.verdict == "passed" or time.monotonic() > deadline:
            return check
        time.sleep(_LOOK_AGAIN_S)
