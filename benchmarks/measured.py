"""Which code each benchmark measures: when that has changed, its last result is stale."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.kept_results import Result
from benchmarks.stand import revision

GATEWAY = ("deployments/gateway", "deployments/process", "deployments/prompt", "deployments/wire")
PLACEMENT = ("router", "autoscaling")
ENGINE = ("deployments/engine", "deployments/wire")
SERVING = (*GATEWAY, *PLACEMENT, *ENGINE)

PATHS: Mapping[str, tuple[str, ...]] = {
    "backtest": (*PLACEMENT, "simulator", "benchmarks/backtest"),
    "budgets": (*GATEWAY, "router", "benchmarks/budgets"),
    "client": ("loadgen", "benchmarks/client"),
    "cold-starts": (*ENGINE, "benchmarks/cold_starts"),
    "drill-hangs": (*ENGINE, "router", "tests/hang_drill.py"),
    "drills": (*SERVING, "benchmarks/drills"),
    "fairness": (*SERVING, "benchmarks/fairness"),
    "gateways": (*GATEWAY, *PLACEMENT, "benchmarks/gateways"),
    "grammars": (*SERVING, "benchmarks/grammars"),
    "index": ("router", "benchmarks/index"),
    "isolation": (*GATEWAY, *PLACEMENT, "benchmarks/isolation"),
    "long-prompts": (*GATEWAY, *PLACEMENT, "benchmarks/long_prompts"),
    "observability": (*GATEWAY, "observability", "benchmarks/observability"),
    "overhead": (*GATEWAY, *PLACEMENT, "observability", "benchmarks/overhead"),
    "overload": (*SERVING, "benchmarks/overload"),
    "peers": (*SERVING, "benchmarks/peers"),
    "prediction": (*SERVING, "benchmarks/prediction"),
    "resume": (*SERVING, "benchmarks/resume"),
    "routing": (*SERVING, "benchmarks/routing"),
    "scale": (*PLACEMENT, "simulator", "benchmarks/scale"),
    "simulator": (*PLACEMENT, "simulator", "benchmarks/validation"),
    "soak": (*SERVING, "benchmarks/soak"),
    "spike": (*SERVING, "benchmarks/spike"),
    "startup": (*PLACEMENT, "simulator", "benchmarks/backtest"),
    "weights": ("weights", "deployments/offline", "benchmarks/weights"),
}

FILE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "stale.json"

Stale = Mapping[str, str]
"""Benchmark -> the first commit after its last result that changed what it measures; empty where
none did. A benchmark that git cannot tell about is left out."""


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
