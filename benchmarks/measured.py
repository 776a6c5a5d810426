"""Which code each benchmark measures: when that has changed, its last result is stale."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.results import report, revision
from benchmarks.kept_results import Result

GATEWAY = ("deployments/gateway", "deployments/process", "deployments/prompt", "deployments/wire")
MODELS = "deployments/gateway/models"
CHOICE = "deployments/gateway/pool/scheduling.py"
PLACEMENT = ("router", "autoscaling")
ENGINE = ("deployments/engine", "deployments/wire")
SERVING = (*GATEWAY, *PLACEMENT, *ENGINE)
# Of the harness, what takes part in what is measured: a played engine, a kind of traffic.
HARNESS = "benchmarks/harness"
STATE = f"{HARNESS}/fleets/fleet_state.py"
DRILLED = (f"{HARNESS}/fleets/drilled_fleet.py", f"{HARNESS}/load/client_answers.py", STATE)
PLAYED = (f"{HARNESS}/fleets/played_engine.py", f"{HARNESS}/load/closed_loop.py")
OFFERED = (f"{HARNESS}/load/offered_load.py", f"{HARNESS}/load/offered_load.yaml")
ROUTED = (
    f"{HARNESS}/load/routed_runs.py",
    f"{HARNESS}/load/routed_runs.yaml",
    f"{HARNESS}/load/oracle.py",
)
CHATS = (f"{HARNESS}/load/arrivals.py",)
LAUNCHED = f"{HARNESS}/fleets/launched.py"
INDEX_POOL, LONE = f"{HARNESS}/fleets/index_pool.py", f"{HARNESS}/fleets/lone_gateway.py"

PATHS: Mapping[str, tuple[str, ...]] = {
    "adapters": (*SERVING, f"{HARNESS}/fleets/made_adapter.py", "benchmarks/adapters"),
    "backtest": (*PLACEMENT, "simulator", "benchmarks/backtest"),
    "budgets": (*GATEWAY, "router", "benchmarks/budgets"),
    "canary": (MODELS, "router", "benchmarks/canary"),
    "client": ("loadgen", LAUNCHED, "benchmarks/client"),
    "drill-hangs": (*ENGINE, "router", "benchmarks/drills/hangs.py"),
    "drills": (*SERVING, *DRILLED, "benchmarks/drills"),
    "fairness": (*SERVING, *OFFERED, "benchmarks/fairness"),
    "grammars": (*SERVING, STATE, "benchmarks/grammars"),
    "index": ("router", INDEX_POOL, "benchmarks/index"),
    "isolation": (*GATEWAY, *PLACEMENT, "benchmarks/isolation"),
    "kinds": (CHOICE, *PLACEMENT, "simulator", "benchmarks/kinds"),
    "large-bodies": (*GATEWAY, "benchmarks/overhead"),
    "long-prompts": (*GATEWAY, *PLACEMENT, INDEX_POOL, "benchmarks/long_prompts"),
    "overhead": (*GATEWAY, *PLACEMENT, "observability", *PLAYED, "benchmarks/overhead"),
    "overload": (*SERVING, *OFFERED, "benchmarks/overload"),
    "peers": (*SERVING, LONE, LAUNCHED, "benchmarks/peers"),
    "planned": ("weights", "deployments/offline", "benchmarks/planned"),
    "prediction": (*SERVING, *ROUTED, "benchmarks/prediction"),
    "resume": (*SERVING, *DRILLED, "benchmarks/resume"),
    "routing": (*SERVING, *ROUTED, "benchmarks/routing"),
    "scale": (*PLACEMENT, "simulator", *CHATS, INDEX_POOL, "benchmarks/scale"),
    "simulator": (*PLACEMENT, "simulator", "benchmarks/validation"),
    "soak": (*SERVING, STATE, "benchmarks/soak"),
    "spike": (*SERVING, "benchmarks/spike"),
    "tiers": (*SERVING, LONE, LAUNCHED, "benchmarks/tiers"),
    "startup": (*PLACEMENT, "simulator", "benchmarks/backtest"),
    "weights": ("weights", "deployments/offline", "benchmarks/weights"),
}

# Benchmarks that no longer exist. Their results are kept.
REMOVED = frozenset({"cold-starts", "observability"})

FILE = report.PAGES / "stale.json"

Stale = Mapping[str, str]
"""Benchmark -> the first commit after its last result that changed what it measures; empty where
none did. A benchmark without git history is left out."""


def stale(last: Mapping[str, Result], root: Path = revision.ROOT) -> dict[str, str]:
    found = {}
    for name, result in sorted(last.items()):
        if name in PATHS and result.get("commit"):
            with contextlib.suppress(LookupError):
                changed = revision.changed_since(result["commit"], PATHS[name], root)
                found[name] = changed or ""
    return found


def read(file: Path = FILE) -> dict[str, str]:
    """As `make bench-summary` found it last."""
    told: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return told
