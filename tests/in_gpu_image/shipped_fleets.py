"""The fleet files and values that an image ships, as fleets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def shipped_fleets(root: Path) -> dict[str, dict[str, Any]]:
    """Of `fleets/` and the chart's values below `root`, those that use GPUs."""
    files = [*sorted(root.glob("fleets/*.yaml")), *sorted(root.glob("helm/antefix/values/*.yaml"))]
    found = {}
    for file in files:
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
        fleet = written["fleet"] if file.parent.name == "values" else written
        if uses_gpus(fleet):
            found[f"{file.parent.name}/{file.stem}"] = fleet
    return found


def uses_gpus(fleet: dict[str, Any]) -> bool:
    return any(on_gpus(pool) for pool in fleet["pools"].values())


def on_gpus(pool: dict[str, Any]) -> bool:
    """A pool runs on CPUs where it says so, or serves the embedded model."""
    gpus = (pool.get("resources") or {}).get("gpus")
    return gpus != 0 and pool["model"] != "embedded"
