"""Ray Serve driver of `antefix`, a separate process: python -m ...serve_driver

It reads one JSON object from stdin, and writes events as JSON lines to stdout:

    {"action": "deploy", "address", "local", "fleet", "secrets"}
        {"event": "connected", "started_serve"}
        {"event": "pools", "pools": {name: {"running", "target", "states"}}, "message"}
        {"event": "running"}  or  {"event": "failed", "message", "remedy", "conflict"}
    {"action": "update", "address", "local", "before", "fleet", "secrets"}
        {"event": "connected"}, then as above; `before` is the running fleet, empty: unknown
    {"action": "remove", "address", "local", "shutdown_serve"}
        {"event": "removed"}

It is a separate process, because Ray ends its driver when the node manager dies, and writes to its
stdout. Ray also takes seconds to import, and needs its own environment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from cli.local.placing import delay
from cli.local.ray_head import cpus
from deployments.app import applications, begin_anew, running_replicas
from deployments.fleet.applications import (
    GATEWAYS_APPLICATION,
    application_of,
    is_application,
    restarts,
)
from deployments.fleet.fleet import Fleet
from deployments.gateway.gateway_parts import Secrets

POLL_SECONDS = 0.5

Emit = Callable[[dict[str, Any]], None]


def deploy(request: dict[str, Any], emit: Emit) -> None:
    fleet = Fleet.model_validate_json(json.dumps(request["fleet"]))
    started_serve = not _serve_is_running()
    if not started_serve and _ours():
        emit(
            {
                "event": "failed",
                "message": f"an application named {GATEWAYS_APPLICATION!r} runs in this Ray "
                "cluster already",
                "remedy": "stop it where it was started: antefix down",
                "conflict": True,
            }
        )
        return
    if request["local"] and not _fits(fleet, emit):
        return
    # Gateways listen themselves; a proxy in front of them would only add a hop.
    serve.start(proxy_location="Disabled")
    emit({"event": "connected", "started_serve": started_serve})
    secrets = Secrets(**request["secrets"])
    asyncio.run(begin_anew(fleet, secrets))
    _run(applications(fleet, secrets))
    _follow(fleet, emit)


def update(request: dict[str, Any], emit: Emit) -> None:
    """Update the fleet. Engines of changed pools are replaced, a few at a time; gateways pass hot
    settings to the others.
    """
    before, after = request["before"], request["fleet"]
    fleet = Fleet.model_validate_json(json.dumps(after))
    if request["local"] and not _fits(fleet, emit):
        return
    secrets = Secrets(**request["secrets"])
    running = asyncio.run(running_replicas(fleet, secrets))
    built = applications(fleet, secrets, running)
    if before:
        changed = restarts(before, after)
        anew = {GATEWAYS_APPLICATION, *map(application_of, changed.pools | changed.added)}
        built = {name: application for name, application in built.items() if name in anew}
    emit({"event": "connected"})
    _run(built)
    for name in _ours().keys() - {application_of(pool) for pool in fleet.pools}:
        if name != GATEWAYS_APPLICATION:
            serve.delete(name, _blocking=False)
    _follow(fleet, emit)


def _run(built: Mapping[str, serve.Application]) -> None:
    targets = [
        serve.RunTarget(target=application, name=name, route_prefix=None)
        for name, application in built.items()
    ]
    serve.run_many(
        targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
    )


def _follow(fleet: Fleet, emit: Emit) -> None:
    """Follow the deployment until all of it runs, or cannot."""
    while True:
        ours = _ours()
        emit({"event": "pools", "pools": _pools(fleet, ours)})
        if message := next(filter(None, map(_failure, ours.values())), ""):
            emit({"event": "failed", "message": message, "remedy": ""})
            return
        if all(of.status == ApplicationStatus.RUNNING for of in ours.values()):
            emit({"event": "running"})
            return
        time.sleep(POLL_SECONDS)


def remove(request: dict[str, Any], emit: Emit) -> None:
    """Remove the fleet. Streams in flight end first, up to the fleet's drain time."""
    if _serve_is_running():
        for name in _ours():
            # Ray Serve gives up its wait after 60 s, whatever the drain time is.
            serve.delete(name, _blocking=False)
        while _ours():
            time.sleep(POLL_SECONDS)
        if request["shutdown_serve"] and not serve.status().applications:
            serve.shutdown()  # type: ignore[no-untyped-call]
    emit({"event": "removed"})


def _connect(address: str, local: bool) -> None:
    if local:
        # Ray would replace the loopback address with the machine's, where nothing listens.
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    ray.init(address=address, namespace="serve", log_to_driver=False, logging_level=logging.WARNING)


def _serve_is_running() -> bool:
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def _ours() -> dict[str, ApplicationStatusOverview]:
    """Return the fleet's applications, by name."""
    found = serve.status().applications
    return {name: status for name, status in found.items() if is_application(name)}


def _fits(fleet: Fleet, emit: Emit) -> bool:
    """Return whether a Ray that was started here has enough resources; otherwise emit a failure."""
    has: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = sum((pool.resources.gpus or 0.0) * pool.first_replicas for pool in fleet.pools.values())
    if gpus > has.get("GPU", 0.0):
        message = f"the fleet needs {gpus:g} GPUs, but Ray finds {has.get('GPU', 0.0):g}"
        remedy = "use a fleet file for fewer GPUs, or another machine"
    elif cpus(fleet) > has["CPU"]:
        message = (
            f"the fleet reserves {cpus(fleet)} CPU cores, but Ray was started with {has['CPU']:g}"
        )
        remedy = "reserve fewer (resources.cpus, replicas), or run antefix down, then antefix up"
    else:
        return True
    emit({"event": "failed", "message": message, "remedy": remedy})
    return False


def _pools(fleet: Fleet, ours: Mapping[str, ApplicationStatusOverview]) -> dict[str, Any]:
    pools = {}
    for name, pool in fleet.pools.items():
        deployment = ours[application_of(name)].deployments.get(name)
        states = deployment.replica_states if deployment else {}
        counts = {str(getattr(state, "value", state)): n for state, n in states.items()}
        pools[name] = {
            "running": counts.get("RUNNING", 0),
            "target": pool.first_replicas,
            "states": counts,
            "delay": delay(deployment.message) if deployment else "",
        }
    return pools


def _failure(status: ApplicationStatusOverview) -> str:
    """Return why the fleet will not run; empty while it may. Serve itself would retry twenty times
    silently."""
    for name, deployment in status.deployments.items():
        if "failed to start" in deployment.message or (
            deployment.status.value == "DEPLOY_FAILED"
            # the health check of a started replica failed: Serve replaces it
            or (
                deployment.status.value == "UNHEALTHY"
                and deployment.status_trigger.value != "HEALTH_CHECK_FAILED"
            )
        ):
            return f"{name}: {deployment.message}"
    return status.message if status.status == ApplicationStatus.DEPLOY_FAILED else ""


def main() -> None:
    # Ray and its libraries print too; the reader must get only this driver's lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=answers, flush=True)

    request = json.load(sys.stdin)
    try:
        _connect(request["address"], request["local"])
        {"deploy": deploy, "update": update, "remove": remove}[request["action"]](request, emit)
    except (ConnectionError, RayServeException, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines()
        message = f"{type(error).__name__}: {lines[0] if lines else ''}"
        emit({"event": "failed", "message": message, "remedy": ""})
        raise
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
