"""A Ray cluster of several nodes on one machine, and what an outsider sees of the fleet on it.

Each node has a separate network namespace, joined by a bridge in one more, where the clients and
Redis are. The machine's own network is left alone. `lose` takes a node off the bridge before it
kills it: no peer gets even a reset. Where namespaces are not allowed the nodes differ by their
loopback address alone, and a lost node is one whose processes are killed.

Everything is ended by what it was started as, and namespaces have names unique to the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import redis

from cli.local import processes, ray_head, redis_server
from cli.local.ports import free_ports

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_SUBNET = "198.18.0"  # reserved for tests between networks
_RAY_START_SECONDS = 120
DASHBOARD_PORT = 8265
# A node that does not answer is given up after 3 x (5 + 2) s; Ray's own 65 s only make it longer.
_PATIENCE = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}


class Network(Protocol):
    name: str
    outside: str

    def join(self, number: int) -> str: ...
    def prefix(self, number: int) -> list[str]: ...
    def cut(self, number: int) -> None: ...
    def enter(self) -> None: ...
    def remove(self) -> None: ...


class Namespaces:
    """`outside` is the address of the namespace that has the bridge."""

    name = "network namespaces"
    outside = f"{_SUBNET}.1"

    def __init__(self) -> None:
        """Raises OSError or CalledProcessError where this is not allowed."""
        self._run = f"afx{secrets.token_hex(3)}"
        self._hub = f"{self._run}-hub"
        self._made: list[str] = []
        try:
            self._add(self._hub)
            _ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
            _ip("-n", self._hub, "addr", "add", f"{self.outside}/24", "dev", "hub")
            _ip("-n", self._hub, "link", "set", "hub", "up")
            self.join(254)  # a veth pair may be what is not allowed
        except BaseException:
            self.remove()
            raise

    def join(self, number: int) -> str:
        node, port, address = self._node(number), f"port{number}", f"{_SUBNET}.{number}"
        self._add(node)
        _ip("-n", self._hub, "link", "add", port, "type", "veth", "peer", "eth0", "netns", node)
        _ip("-n", self._hub, "link", "set", port, "master", "hub", "up")
        _ip("-n", node, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", node, "link", "set", "eth0", "up")
        # Nothing answers beyond the bridge, but what asks for its own address looks at this.
        _ip("-n", node, "route", "add", "default", "via", self.outside)
        return address

    def prefix(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", self._node(number) if number else self._hub]

    def cut(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"port{number}", "down")

    def enter(self) -> None:
        """The calling thread's sockets are outside from now on."""
        with Path(f"/run/netns/{self._hub}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def remove(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=20)
        self._made.clear()

    def _node(self, number: int) -> str:
        return f"{self._run}-{number}"

    def _add(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")


class Loopback:
    """Nodes on 127.0.0.1, 127.0.0.2, ...: the kernel still closes a dead node's connections."""

    name = "loopback addresses"
    outside = "127.0.0.1"

    def join(self, number: int) -> str:
        return f"127.0.0.{number}"

    def prefix(self, number: int) -> list[str]:
        return []

    def cut(self, number: int) -> None: ...

    def enter(self) -> None: ...

    def remove(self) -> None: ...


def network() -> Network:
    try:
        return Namespaces()
    except (OSError, subprocess.SubprocessError):
        return Loopback()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


def keep_node_address(params: Any, head: bool) -> None:
    """Named in RAY_START_HOOK: Ray would replace a loopback address with the machine's own."""
    params.node_ip_address = os.environ["ANTEFIX_TEST_NODE_ADDRESS"]
    params.ray_client_server_port = None


@dataclass(frozen=True)
class Node:
    number: int
    address: str
    run_id: str

    def processes(self) -> list[psutil.Process]:
        return processes.processes(self.run_id)

    def runs(self, title: str) -> bool:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if title in " ".join(process.cmdline()):
                    return True
        return False


class TwoNodes:
    """A cluster: `start` it, `join` nodes, `lose` them; `close` ends all there is."""

    def __init__(self) -> None:
        self.network = network()
        self.folder = Path(tempfile.mkdtemp(prefix="afx2-"))
        self.home = self.folder / "home"
        self.redis_url = ""
        self.token = secrets.token_hex(32)
        self._gcs = ""
        self.nodes: list[Node] = []
        self._redis: subprocess.Popen[bytes] | None = None
        self._outside = ThreadPoolExecutor(8, initializer=self.network.enter)

    @property
    def ray_address(self) -> str:
        """For `antefix up --address`."""
        return self._gcs

    def start_redis(self) -> None:
        port, password = free_ports(1)[0], secrets.token_urlsafe(16)
        executable = redis_server.find_executable(os.environ)
        self._redis = subprocess.Popen(
            [*self.network.prefix(0), executable, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )
        assert self._redis.stdin is not None
        configuration = f"""\
bind {self.network.outside}
port {port}
requirepass {password}
save ""
"""
        with self._redis.stdin as stdin:
            stdin.write(configuration.encode())
        self.redis_url = f"redis://:{password}@{self.network.outside}:{port}/0"
        self.wait_for(self._redis_answers, 20, "Redis")

    def join(self, number: int, cpus: float, resources: str, with_dashboard: bool = False) -> Node:
        """Start a Ray node, the first as the head; returns once Ray says that it runs.

        `with_dashboard`: the head has one, on DASHBOARD_PORT.
        """
        node = Node(number, self.network.join(number), f"{self.folder.name}-node-{number}")
        gcs, listen, grpc, runtime_env, metrics, dashboard = free_ports(6)
        if self.nodes:
            role = [f"--address={self._gcs}"]
        else:
            self._gcs = f"{node.address}:{gcs}"
            role = [
                "--head",
                f"--port={gcs}",
                f"--temp-dir={self.folder / 'ray'}",
                f"--include-dashboard={with_dashboard}",
                *(f"--dashboard-host={node.address}", f"--dashboard-port={DASHBOARD_PORT}"),
            ]
        self.nodes.append(node)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *role),
            f"--node-ip-address={node.address}",
            f"--dashboard-agent-listen-port={listen}",
            f"--dashboard-agent-grpc-port={grpc}",
            f"--runtime-env-agent-port={runtime_env}",
            f"--metrics-export-port={metrics}",
            *("--node-manager-port=0", "--object-manager-port=0"),
            *("--min-worker-port=0", "--max-worker-port=0"),
            *(f"--num-cpus={cpus}", f"--resources={resources}"),
            "--object-store-memory=100000000",
            *("--include-log-monitor=false", "--disable-usage-stats", "--log-color=false"),
        ]
        env = {**self._environment(node), "DASHBOARD_METRIC_PORT": str(dashboard)}
        done = self.run(command, number, env, _RAY_START_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return node

    def antefix(self, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """The command line on the head's machine, as a user of this cluster has it."""
        return self.python(self.nodes[0], "cli.main", *arguments, timeout_s=timeout_s)

    def python(
        self, node: Node, module: str, *arguments: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """A module of Antefix on a node's machine, with what its owner needs to use the
        cluster."""
        env = {
            **_inherited(),
            "ANTEFIX_HOME": str(self.home),
            "RAY_ADDRESS": self._gcs,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
        }
        return self.run([sys.executable, "-m", module, *arguments], node.number, env, timeout_s)

    def run(
        self, command: Sequence[str], number: int, env: dict[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.network.prefix(number), *command],
            env=env,
            cwd=ray_head.REPOSITORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def outside(self, function: Callable[..., T], *arguments: Any, timeout_s: float) -> T:
        """Call it where the clients are."""
        return self.begin_outside(function, *arguments).result(timeout_s)

    def begin_outside(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        return self._outside.submit(function, *arguments)

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Seconds it took, looking from where the clients are."""
        began = time.monotonic()
        while not self.outside(is_so, timeout_s=60):
            assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s:g} s"
            time.sleep(0.1)
        return time.monotonic() - began

    def lose(self, node: Node) -> None:
        """A machine that loses its network and its power at once."""
        self.network.cut(node.number)
        while left := node.processes():
            for process in left:
                process.kill()
            psutil.wait_procs(left, timeout=1)

    def close(self) -> None:
        self._outside.shutdown(wait=False, cancel_futures=True)
        with ThreadPoolExecutor() as stopping:
            list(stopping.map(processes.stop, [node.run_id for node in self.nodes]))
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait(10)
        self.network.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _redis_answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.redis_url, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _environment(self, node: Node) -> dict[str, str]:
        return {
            **_inherited(),
            **_PATIENCE,
            "PYTHONPATH": str(ray_head.REPOSITORY),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_START_HOOK": "tests.two_nodes.keep_node_address",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "VLLM_HOST_IP": node.address,
            "ANTEFIX_TEST_NODE_ADDRESS": node.address,
            **processes.marker(node.run_id),
        }


def _inherited() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ANTEFIX_RUN"))}
