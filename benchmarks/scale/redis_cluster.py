"""What comes after one Redis: Redis Cluster, in which each pool (a model) is on one of the nodes.

All keys of a pool have the same hash tag, so its scripts run on one node, and pools spread over the
nodes as their names hash. A real cluster of three nodes on loopback plays it: every pool has
replicas that write, and gateways that look up by the same code as ever.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import redis

from benchmarks.scale.patience import PATIENT_S, patiently
from cli.local import redis_server
from cli.local.ports import LOOPBACK, is_free
from common.errors import Problem
from common.percentiles import percentile
from router import slots
from router.index import PrefixIndex
from router.redis_client import connect
from router.segment_keys import KEY_BYTES

NODES = 3
HASH_SLOTS = 16384
# The nodes speak to each other on their port and so much.
BUS = 10_000
READY_S = 60.0
REPLICAS, PROMPTS, SEGMENTS = 8, 16, 64


@dataclass(frozen=True)
class ClusterFound:
    """`pools`: how many are on each node. `lookup_s`: the median. `wrong`: lookups that did not
    say what was written."""

    pools: list[int]
    lookup_s: float
    wrong: int

    @property
    def gain(self) -> float:
        """How many times what one Redis serves, where pools are alike."""
        return sum(self.pools) / max(self.pools)


@contextmanager
def cluster() -> Iterator[list[int]]:
    """The ports of its nodes; the hash slots are spread evenly. Raises Problem."""
    ports = _free_ports()
    executable = redis_server.find_executable(os.environ)
    processes = []
    with tempfile.TemporaryDirectory(prefix="afx-bench-") as folder:
        try:
            for port in ports:
                own = Path(folder) / str(port)
                own.mkdir()
                command = [executable, "--port", str(port), "--bind", LOOPBACK]
                command += ["--cluster-enabled", "yes", "--save", "", "--dir", str(own)]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            _join(ports)
            yield ports
        finally:
            for process in processes:
                process.kill()
                process.wait()


async def measure(ports: list[int], pools: int) -> ClusterFound:
    """Replicas of so many pools write what they hold, and gateways look it up."""
    client = connect(f"redis+cluster://{LOOPBACK}:{ports[0]}", decode=False)
    rng = random.Random(1)
    seconds, wrong = [], 0
    try:
        for number in range(pools):
            name = f"fleet/model-{number}"
            index = PrefixIndex(client, name, PATIENT_S)
            incarnations = [f"{number:08x}{slot:08x}" for slot in range(REPLICAS)]
            for slot, incarnation in enumerate(incarnations):
                await patiently(partial(slots.claim, client, name, incarnation, slot))
            for prompt in range(PROMPTS):
                keys = [rng.randbytes(KEY_BYTES) for _ in range(SEGMENTS)]
                held = {slot: SEGMENTS - slot for slot in range(prompt % REPLICAS + 1)}
                for slot, depth in held.items():
                    mine = incarnations[slot]
                    write = partial(slots.write_bits, client, name, slot, mine, keys[:depth], [])
                    await patiently(write)
                began = time.perf_counter()
                found = await index.lookup(keys)
                seconds.append(time.perf_counter() - began)
                wrong += found != held
            await index.aclose()
    finally:
        await client.aclose()
    return ClusterFound(_pools_on(ports, pools), percentile(seconds, 50), wrong)


def _pools_on(ports: list[int], pools: int) -> list[int]:
    counts = []
    for port in ports:
        with redis.Redis(LOOPBACK, port) as node:
            found: Any = node.keys("*:slots")
            counts.append(len(found))
    assert sum(counts) == pools
    return counts


def _free_ports() -> list[int]:
    ports: list[int] = []
    for port in range(21000, 30000):
        if is_free(LOOPBACK, port) and is_free(LOOPBACK, port + BUS):
            ports.append(port)
            if len(ports) == NODES:
                return ports
    raise Problem("no three ports are free on loopback", "end what holds ports above 21000")


def _join(ports: list[int]) -> None:
    share = -(-HASH_SLOTS // len(ports))
    nodes = [redis.Redis(LOOPBACK, port, decode_responses=True) for port in ports]
    for number, node in enumerate(nodes):
        _until(node.ping)
        begin, end = number * share, min((number + 1) * share, HASH_SLOTS)
        _ask(node, "ADDSLOTS", *range(begin, end))
        _ask(node, "MEET", LOOPBACK, ports[0])
    for node in nodes:
        _until(partial(_knows, node, "SLOTS", lambda told: told.count(LOOPBACK) >= len(ports)))
        _until(partial(_knows, node, "INFO", lambda told: "cluster_state:ok" in told))
        node.close()


def _knows(node: redis.Redis, question: str, enough: Callable[[str], bool]) -> bool:
    return enough(str(_ask(node, question)))


def _ask(node: redis.Redis, *command: str | int) -> object:
    ask: Callable[..., object] = node.execute_command
    return ask("CLUSTER", *command)


def _until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            if true():
                return
        except redis.RedisError:
            pass
        if time.monotonic() > deadline:
            raise Problem("the Redis cluster was not ready in time", "run it on an idle machine")
        time.sleep(0.05)
