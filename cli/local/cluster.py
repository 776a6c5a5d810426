"""Start and stop a fleet on this machine: only its own processes.

A run's id is recorded before its first process starts, and every process carries it
(`cli.local.processes`). So the next `up` or `down` finds and ends everything that a crash, a kill
or half an `up` left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cli.local import monitoring, processes, ray_head, redis_server
from cli.local.home import FleetState, Home, Keys
from common.errors import Problem
from common.failure import gist, tail
from deployments.fleet.fleet import Fleet

OnPools = Callable[[dict[str, Any]], None]
"""Takes running, target and states by pool, and what holds replicas back, if anything."""


class AlreadyDeployed(Problem):
    """The Ray cluster runs a fleet that was started elsewhere."""


def start_redis(home: Home, state: FleetState) -> FleetState:
    """Start the embedded Redis, if the fleet has no Redis URL."""
    folder, log_file = home.redis_folder(state.run_id), home.logs / "redis.log"
    env = {**os.environ, **processes.marker(state.run_id)}
    server = redis_server.start(folder, log_file, env)
    redis_server.keep(server, folder, log_file, env)
    state = dataclasses.replace(state, redis_url=server.url)
    home.save_state(state)
    return state


def start_monitoring(home: Home, state: FleetState, programs: monitoring.Programs) -> FleetState:
    """Start Prometheus and Alertmanager, or restart them if this run already has them."""
    started = monitoring.start(
        programs,
        home.monitoring_folder(state.run_id),
        home.logs,
        state.metrics_url,
        state.run_id,
    )
    state = dataclasses.replace(
        state, prometheus_url=started.prometheus, alertmanager_url=started.alertmanager
    )
    home.save_state(state)
    return state


def start_ray(home: Home, state: FleetState, fleet: Fleet) -> FleetState:
    # Also the folder of a run whose state was lost: a home has one run at a time.
    shutil.rmtree(home.metrics_folder(state.run_id).parent, ignore_errors=True)
    home.metrics_folder(state.run_id).mkdir(mode=0o700, parents=True)
    ray_head.prepare_temp_dir(home)
    state = dataclasses.replace(state, ray_temp_dir=str(ray_head.temp_dir(home)))
    home.save_state(state)
    state = dataclasses.replace(state, ray_address=ray_head.start(home, state.run_id, fleet))
    home.save_state(state)
    return state


def deploy(
    home: Home,
    state: FleetState,
    fleet: Fleet,
    keys: Keys,
    on_pools: OnPools,
    before: dict[str, Any] | None = None,
) -> FleetState:
    """Deploy and return once every replica runs. Raises Problem with the reason.

    `before`: the running fleet that is updated; empty if unknown.
    """
    told = fleet.model_dump(mode="json")
    request = {
        "action": "deploy" if before is None else "update",
        "address": state.ray_address,
        "local": state.own_ray,
        "before": before,
        "fleet": told,
        "secrets": {
            "api_keys": {keys.api_key: "default"},
            "engine_secret": keys.engine_secret,
            "redis_url": state.redis_url,
            # nodes of a foreign cluster do not have this file
            "keys_file": str(home.keys_file) if state.own_ray else "",
        },
    }
    for event in _drive(home, state, request):
        if event["event"] == "connected":
            started_serve = event.get("started_serve", state.started_serve)
            state = dataclasses.replace(
                state, deployed=True, started_serve=started_serve, fleet=told
            )
            home.save_state(state)
        elif event["event"] == "pools":
            on_pools(event["pools"])
        elif event["event"] == "failed":
            raise _deploy_error(home, state, event)
    return state


def remove(home: Home, state: FleetState) -> None:
    """Remove the fleet from Ray Serve. Streams in flight end first, up to its drain time.

    Raises Problem if Ray is unreachable.
    """
    request = {
        "action": "remove",
        "address": state.ray_address,
        "local": state.own_ray,
        "shutdown_serve": state.started_serve,
    }
    for event in _drive(home, state, request):
        if event["event"] == "failed":
            raise Problem(event["message"], f"see {home.logs / 'serve.log'}")


def stop(home: Home, state: FleetState) -> None:
    """End everything that this run started, in any state, and forget it."""
    processes.stop(state.run_id)
    for folder in (home.redis_folder, home.metrics_folder, home.monitoring_folder):
        shutil.rmtree(folder(state.run_id), ignore_errors=True)
    home.forget_state()


def is_alive(state: FleetState) -> bool:
    """Return false once the fleet cannot recover by itself. The state of another's Ray cluster is
    unknown."""
    return not state.own_ray or processes.core_is_alive(state.run_id)


def ray_logs(state: FleetState) -> Path | None:
    return ray_head.log_folder(state.ray_temp_dir) if state.ray_temp_dir else None


def _drive(home: Home, state: FleetState, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield events of `serve_driver`. An end without its last event becomes a "failed" event."""
    log_file = home.logs / "serve.log"
    with (
        log_file.open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "cli.local.serve_driver"],
            env=_driver_environment(home, state),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as driver,
    ):
        assert driver.stdin is not None and driver.stdout is not None
        ended = False
        try:
            with contextlib.suppress(BrokenPipeError), driver.stdin:
                driver.stdin.write(json.dumps(request))
            for line in driver.stdout:
                event: dict[str, Any] = json.loads(line)
                ended = event["event"] in ("running", "removed", "failed")
                yield event
        finally:
            # The last event has arrived, or the caller no longer reads.
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(10 if ended else 0)
            driver.kill()
    if not ended:
        last = next((line for line in reversed(tail(log_file)) if line.strip()), "")
        message = f"the connection to Ray was lost: {last}"
        yield {"event": "failed", "message": message, "remedy": f"see {log_file}"}


def _driver_environment(home: Home, state: FleetState) -> dict[str, str]:
    if state.own_ray:
        return ray_head.environment(home, state.run_id)
    return {
        **os.environ,
        "PYTHONPATH": str(ray_head.REPOSITORY),
        **processes.marker(state.run_id),
    }


def _deploy_error(home: Home, state: FleetState, event: dict[str, Any]) -> Problem:
    if event.get("conflict"):
        return AlreadyDeployed(event["message"], event["remedy"])
    if event["remedy"]:
        return Problem(event["message"], event["remedy"])
    logs = ray_logs(state) or home.logs
    pool, _, message = event["message"].partition(": ")
    return Problem(f"{pool}: {gist(message, logs)}", f"see {logs}")
