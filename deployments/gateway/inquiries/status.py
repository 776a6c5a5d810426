"""The fleet's current status, for `antefix status`, the page and the readiness probe."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from autoscaling.admission.outage import Outage
from common.percentiles import percentile
from common.release import VERSION
from deployments.gateway.inquiries.traffic_status import pool_traffic, tenants_status
from deployments.gateway.intake.in_force import InForce
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.pools import Pools, least_replicas, target_replicas
from deployments.gateway.pool.serve_controller import ServeController
from observability.metrics.budget_metrics import BudgetMetrics
from observability.metrics.traffic import ServedTraffic
from router.board.load import LoadBoard, ReplicaLoad
from router.choice.cost import predict_ttft

# The prompt whose TTFT `status` predicts for each replica, in tokens.
REFERENCE_PROMPT_TOKENS = 512
# Fields of a replica that only operators see: its address, and its load from other tenants.
_OF_OPERATORS = (
    *("url", "node_ip", "slot", "waiting", "running", "queued_prefill_tokens", "kv_use"),
    "predicted_ttft_s",
)


@dataclass(frozen=True, eq=False)
class StatusSources:
    """The sources of a gateway's status. `in_force.fleet` must be set."""

    in_force: InForce
    pools: Pools
    controller: ServeController
    traffic: ServedTraffic
    budgets: BudgetMetrics
    is_held: Callable[[str], bool]


async def pools_ready(pools: Mapping[str, GatewayPool], controller: ServeController) -> list[str]:
    """Return the pools that should have a running replica, and have none."""
    wanted = {name: pool for name, pool in pools.items() if least_replicas(pool)}
    if all(pool.scheduler.board.loads() for pool in wanted.values()):
        return []
    states = (await controller.status.latest()).states
    return [name for name in wanted if not states.get(name, {}).get("RUNNING")]


async def fleet_status(
    sources: StatusSources, tenant: str | None = None, minutes: int | None = None
) -> dict[str, Any]:
    """Return the fleet's status.

    If Redis does not answer, it lists the replicas that Ray Serve runs, without loads.
    `settings_refused`: why the newest settings are not in use; null if they are.

    `tenant`: omits addresses, and names, queues, traffic and budgets of other tenants; None: for
    operators, omits nothing. `minutes`: adds the traffic of these minutes in steps; None: only the
    totals since the process began.
    """
    fleet, pools = sources.in_force.fleet, sources.pools.by_name
    controller, traffic = sources.controller, sources.traffic
    states = (await controller.status.latest()).states
    all_read = all(pool.scheduler.board.is_read for pool in pools.values())
    running = {} if all_read else await controller.running.latest()
    now = asyncio.get_running_loop().time()
    return {
        "fleet": fleet.name,
        "version": VERSION,
        "settings_refused": sources.in_force.refused or None,
        "reference_prompt_tokens": REFERENCE_PROMPT_TOKENS,
        "gateways": states.get("gateway", {}),
        "of_tenant": tenant,
        "links": dict(fleet.gateway.links),
        "models": {name: route.model_dump(mode="json") for name, route in fleet.models.items()},
        "metrics_port": fleet.metrics.port if tenant is None else None,
        "counted": {"process": traffic.process, "since": traffic.since, "at": traffic.now},
        "pools": {
            name: _pool_status(pool, states.get(name, {}), running.get(name, {}), tenant)
            | {"traffic": pool_traffic(traffic, name, tenant, minutes)}
            for name, pool in pools.items()
        },
        **tenants_status(traffic, sources.budgets, tenant, now, sources.is_held),
    }


def _pool_status(
    pool: GatewayPool, states: Mapping[str, int], running: Mapping[str, str], tenant: str | None
) -> dict[str, Any]:
    replicas, admission = _replicas(pool.scheduler.board, running), admission_status(pool)
    if tenant is not None:
        replicas = [replica | dict.fromkeys(_OF_OPERATORS) for replica in replicas]
        own = admission["queued_by_tenant"].get(tenant, 0)
        admission |= {"queued": own, "queued_by_tenant": {tenant: own} if own else {}}
        admission |= {"oldest_queued_s": None, "held": None}
    return {
        "model": pool.settings.served_model_name,
        "target_replicas": target_replicas(pool, states),
        "states": dict(states),
        "policy": pool.settings.policy,
        "index": _index_status(pool),
        "admission": admission,
        "overflow_to": pool.settings.overflow.to if pool.settings.overflow else None,
        "prefill_pool": pool.settings.prefill.pool if pool.settings.prefill else None,
        "autoscaler": msgspec.to_builtins(pool.decided),
        "replicas": replicas,
    }


def admission_status(pool: GatewayPool) -> dict[str, Any]:
    """Return the state of this gateway process's admission.

    `held`: the number of requests that wait for a replica to start. `outage`: the seconds since the
    last replica was up, and until one is predicted to be; null while one is up.
    """
    now, scheduler = asyncio.get_running_loop().time(), pool.scheduler
    admission, gate = scheduler.admission, scheduler.admission.gate
    rooms = (admission.queue, admission.interactive)
    slo = pool.settings.slo
    promised = {"interactive": slo.interactive, "batch": slo.batch}
    return {
        "slo": {name: slo.model_dump() for name, slo in promised.items() if slo},
        "queued": sum(map(len, rooms)),
        "queued_by_tenant": Counter(rooms[0].by_tenant) + Counter(rooms[1].by_tenant),
        "oldest_queued_s": round(max(room.oldest_s(now) for room in rooms), 3),
        "held": scheduler.unassigned,
        "outage": _outage_status(scheduler.outage, now),
        "overflowing": gate is not None and gate.open,
        "overflow_share": round(gate.share(now), 4) if gate else 0.0,
    }


def _outage_status(outage: Outage | None, now: float) -> dict[str, float | None] | None:
    if outage is None:
        return None
    up_in_s = outage.up_in_s(now)
    left_s = None if up_in_s is None else round(up_in_s, 1)
    return {"for_s": round(now - outage.since, 1), "up_in_s": left_s}


def _index_status(pool: GatewayPool) -> dict[str, Any]:
    """Return this gateway process's use of the prefix index; times are in milliseconds."""
    index = pool.feeds.index
    recent = [*index.recent_seconds]
    return {
        "answers": not index.breaker_open,
        "prompts_known": pool.reader.renderer.prompt_tokens is not None,
        "lookups": index.lookups,
        "failures": index.failures,
        "skipped": index.skipped,
        "lookup_p50_ms": round(percentile(recent, 50) * 1000, 3) if recent else None,
        "ttft_prediction_error": pool.scheduler.correction.error,
    }


def _replicas(board: LoadBoard, running: Mapping[str, str]) -> list[dict[str, Any]]:
    if not board.is_read:
        return [_unknown_replica(key, running[key]) for key in sorted(running)]
    active, warm = board.loads(), board.warm()
    suspects, leaving = board.suspects(), board.leaving()
    return [
        *(_replica_status(active[key], "active") for key in sorted(active)),
        *(_replica_status(load, "asleep" if load.asleep else "warm") for load in warm.values()),
        *(_replica_status(suspects[key], "suspect") for key in sorted(suspects)),
        *(_replica_status(leaving[key], "leaving") for key in sorted(leaving)),
    ]


def _replica_status(load: ReplicaLoad, role: str) -> dict[str, Any]:
    return {
        "replica": load.replica_id,
        "role": role,
        "slot": load.slot,
        "synced": load.cache.synced,
        "url": load.url,
        "node_ip": load.node_ip,
        "waiting": load.queue.waiting,
        "running": load.queue.running,
        "queued_prefill_tokens": load.queue.prefill_tokens,
        "kv_use": round(load.cache.use, 4),
        "predicted_ttft_s": round(predict_ttft(load, REFERENCE_PROMPT_TOKENS), 4),
        "startup_s": round(load.startup_s, 1),
        "dtype": load.dtype or None,
        "speculation": msgspec.to_builtins(load.speculation),
    }


def _unknown_replica(replica_id: str, node_ip: str) -> dict[str, Any]:
    """Return the status of a replica without a known load: fields that need the load are null."""
    known = {"replica": replica_id, "role": "unknown", "node_ip": node_ip}
    return dict.fromkeys((*_OF_OPERATORS, "synced", "startup_s", "dtype", "speculation")) | known
