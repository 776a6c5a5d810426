"""What a fleet's processes, engines and Redis hold, seen from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from cli.local import processes
from deployments.fleet.applications import application_of

MB = 1e6


def role_of(process: psutil.Process) -> str:
    """The role of a process in a word or two."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    named = [word for word in words if not word.startswith("-")] or [""]
    if not named[0].rsplit("/", 1)[-1].startswith("python"):
        return named[0].split(" ")[0].rsplit("/", 1)[-1]
    return next((word.rsplit("/", 1)[-1] for word in named[1:]), "python")


def replicas_of(run_id: str, pool: str) -> list[psutil.Process]:
    """The processes of the pool's replicas."""
    found = processes.processes(run_id)
    return [process for process in found if application_of(pool) in role_of(process)]


def private_mb(process: psutil.Process) -> float:
    """Its resident memory without files and shared memory. A leak grows this."""
    memory = process.memory_info()
    return float(memory.rss - memory.shared) / MB


def held_in_redis(client: Any) -> dict[str, int]:
    """Slots with an owner, of all pools, and budgets' leases of requests in progress."""
    slots = leases = 0
    for key in client.scan_iter(match="*:slots"):
        slots += sum(not owner.startswith(b"freed:") for owner in client.hvals(key))
    for key in client.scan_iter(match="*:budgets:*:leases"):
        leases += client.zcard(key)
    return {"slots": slots, "leases": leases}


def held_for_requests(pools: Mapping[str, Any], client: Any) -> dict[str, int]:
    """What engines and Redis hold for requests: all 0 once none is in progress. `pools`: from the
    gateways' status. `client`: of the fleet's Redis."""
    in_redis = held_in_redis(client)
    replicas = [replica for pool in pools.values() for replica in pool["replicas"]]
    expected = sum(pool["target_replicas"] for pool in pools.values())
    return {
        "at_engines": sum(of["running"] + of["waiting"] for of in replicas),
        "slots": abs(in_redis["slots"] - expected),
        "leases": in_redis["leases"],
    }
