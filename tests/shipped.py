"""The fleets that ship: those of fleets/ and those in the chart's values files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet

ROOT = Path(__file__).parent.parent
FLEET_FILES = sorted((ROOT / "fleets").glob("*.yaml"))
VALUES_FILES = sorted((ROOT / "helm" / "antefix" / "values").glob("*.yaml"))


def values_of(file: Path) -> dict[str, Any]:
    """A values file of the chart, as it is written."""
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


def fleet_in(file: Path) -> Fleet:
    """The fleet of a fleet file, or of a values file of the chart."""
    given = yaml.safe_load(file.read_text())
    text = yaml.safe_dump(given.get("fleet", given))
    return parse_fleet(text, str(file), check_engine_args=False)
