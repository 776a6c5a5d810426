"""The Ray of a local fleet: one node on loopback, with free ports and a token.

Two fleets can run on one machine, and programs that look for a Ray find neither.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.local import certificate, processes
from cli.local.home import Home
from cli.local.ports import LOOPBACK, free_ports
from common.errors import Problem
from common.private_folder import made_private, user_folder
from deployments.fleet.fleet import Fleet

# Requests and tokens do not pass through it; a container's /dev/shm may be no larger than this.
OBJECT_STORE_BYTES = 200_000_000
ATTEMPTS = 3
START_SECONDS = 180.0
SESSIONS_KEPT = 2
REPOSITORY = Path(__file__).parents[2]


def start(home: Home, run_id: str, fleet: Fleet) -> str:
    """Start Ray, and return its address once it runs. Raises Problem with its last log line."""
    said = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            processes.stop(run_id)
        # Chosen here, because the raylet waits only 15 s for ports that its agents choose.
        gcs, listen, grpc, runtime_env, metrics, dashboard = free_ports(6)
        ports = {
            "port": gcs,
            "dashboard-agent-listen-port": listen,
            "dashboard-agent-grpc-port": grpc,
            "runtime-env-agent-port": runtime_env,
            "metrics-export-port": metrics,
            "node-manager-port": 0,
            "object-manager-port": 0,
            "min-worker-port": 0,
            "max-worker-port": 0,
        }
        env = {**environment(home, run_id), "DASHBOARD_METRIC_PORT": str(dashboard)}
        said = _run(home, _command(home, ports, fleet), env)
        if not said:
            return f"{LOOPBACK}:{gcs}"
    raise Problem(f"Ray does not start: {said}", f"see {home.logs / 'ray-start.log'}")


def environment(home: Home, run_id: str) -> dict[str, str]:
    """Return the environment of every process that belongs to this Ray, including drivers."""
    from observability.metrics import metric_files

    inherited = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    search_path = [str(REPOSITORY), *filter(None, [inherited.get("PYTHONPATH")])]
    return {
        "VLLM_HOST_IP": LOOPBACK,
        **inherited,
        **certificate.ray_environment(home.folder),
        "PYTHONPATH": os.pathsep.join(search_path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home.ray_token_file()),
        "RAY_START_HOOK": "cli.local.ray_start_hook.keep_to_loopback",
        "RAY_USAGE_STATS_ENABLED": "0",
        # By default Ray's processes log their state every minute, in hundreds of lines. So they do
        # it once a day. -1, which should switch it off, makes one of them log without a pause
        # (Ray 2.60).
        "RAY_event_stats_print_interval_ms": "86400000",
        # Ray runs its workers at nice 15, so that any other process can starve them.
        "RAY_worker_niceness": "0",
        metric_files.FOLDER: str(home.metrics_folder(run_id)),
        **processes.marker(run_id),
    }


def cpus(fleet: Fleet) -> int:
    """Return the number of CPU cores that Ray assumes: at least the number that the fleet reserves.

    Reservations are only bookkeeping, so a small machine may run a fleet that reserves more than it
    has.
    """
    engines = sum(pool.resources.cpus * pool.most_replicas for pool in fleet.pools.values())
    reserved = engines + fleet.gateway.replicas * fleet.gateway.cpus
    return max(os.cpu_count() or 1, math.ceil(reserved))


def temp_dir(home: Home) -> Path:
    """Return Ray's folder. Ray makes it writable for all users; its parent folder keeps them
    out."""
    digest = hashlib.sha256(str(home.folder).encode()).hexdigest()[:8]
    return user_folder() / digest


def prepare_temp_dir(home: Home) -> None:
    """Make the folder private, and delete all except the last sessions' logs.

    Raises Problem if another user created it: that user could read what Ray writes.
    """
    folder = temp_dir(home)
    try:
        made_private(user_folder())
        folder.mkdir(exist_ok=True)
    except PermissionError as error:
        above = user_folder()
        raise Problem(
            f"{above} is owned by another user",
            f"inspect it with `ls -ld {above}`, then remove it or set TMPDIR",
        ) from error
    except OSError as error:
        raise Problem(
            f"{folder} cannot be created: {error.strerror or error}", "set TMPDIR to another folder"
        ) from error
    sessions = [s for s in folder.glob("session_2*") if s.is_dir()]
    for session in sorted(sessions)[: -(SESSIONS_KEPT - 1)]:
        shutil.rmtree(session, ignore_errors=True)


def log_folder(ray_temp_dir: str) -> Path:
    return Path(ray_temp_dir) / "session_latest" / "logs"


def _command(home: Home, ports: Mapping[str, int], fleet: Fleet) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head"),
        f"--node-ip-address={LOOPBACK}",
        *(f"--{name}={port}" for name, port in ports.items()),
        f"--num-cpus={cpus(fleet)}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={temp_dir(home)}",
        "--include-dashboard=false",
        "--include-log-monitor=false",
        "--no-monitor",
        "--disable-usage-stats",
        "--log-color=false",
    ]


def _run(home: Home, command: list[str], env: Mapping[str, str]) -> str:
    """Return the command's last log line; empty if it succeeded."""
    log_file = home.logs / "ray-start.log"
    with log_file.open("ab") as log:
        begin = log.tell()
        try:
            done = subprocess.run(
                command,
                check=False,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=START_SECONDS,
                start_new_session=True,  # `up` handles Ctrl-C and a closed terminal, not Ray
            )
        except subprocess.TimeoutExpired:
            return f"no answer for {START_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    lines = log_file.read_bytes()[begin:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it logged nothing")
