"""The fleets that ship: those of fleets/ and those in the chart's values files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet
from tests.helm.helm import merged

ROOT = Path(__file__).parent.parent
VALUES = ROOT / "helm" / "antefix" / "values"
FLEET_FILES = sorted((ROOT / "fleets").glob("*.yaml"))
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.yaml"))
# Each is whole. The others go over one of those for A100s: the size, the platform, the GPU.
VALUES_FILES = sorted(VALUES.glob("*.yaml"))
# Each is whole, and is what a plan says for a GPU on which no file was measured.
PLANNED_FILES = sorted((VALUES / "planned").glob("*.yaml"))
SIZES = {file.stem.removesuffix("-a100"): file for file in sorted(VALUES.glob("*-a100.yaml"))}
PLATFORMS = {file.stem: file for file in sorted((VALUES / "platforms").glob("*.yaml"))}
GPU_KINDS = {file.stem: file for file in sorted((VALUES / "gpus").glob("*.yaml"))}

# Of all sizes, platforms and GPUs, together with those of a laptop: what is rendered and installed.
INSTALLS: dict[str, tuple[Path, ...]] = {
    "laptop-kind": (VALUES / "laptop-kind.yaml",),
    "four-gpus on AKS, PCIe": (SIZES["four-gpus"], PLATFORMS["aks"], GPU_KINDS["a100-pcie"]),
    "single-node on bare metal": (SIZES["single-node"], PLATFORMS["bare-metal"]),
    "two-nodes on EKS": (SIZES["two-nodes"], PLATFORMS["eks"]),
    "three-nodes on AKS, PCIe": (SIZES["three-nodes"], PLATFORMS["aks"], GPU_KINDS["a100-pcie"]),
    "multi-node on EKS, 40G": (SIZES["multi-node"], PLATFORMS["eks"], GPU_KINDS["a100-40g"]),
    "eight-nodes on GKE": (SIZES["eight-nodes"], PLATFORMS["gke"]),
}

_READERS_OWN = {
    "example.com": "acme.internal",
    "example.org": "acme.test",
    ":123456789012:": ":210987654321:",
    "fs-0123456789abcdef0": "fs-0a1b2c3d4e5f60718",
    "203.0.113.0/24": "10.20.0.0/16",
    "<class>": "files",
}


def filled_in(text: str) -> str:
    """A page or file with a reader's own names for the placeholders, which the chart refuses."""
    for placeholder, own in _READERS_OWN.items():
        text = text.replace(placeholder, own)
    return text


def values_of(file: Path) -> dict[str, Any]:
    """A values file of the chart, as it is written."""
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


def combined(files: tuple[Path, ...]) -> dict[str, Any]:
    """Values of several files as Helm merges them, with a reader's own names."""
    values: dict[str, Any] = {}
    for file in files:
        values = merged(values, values_of(file))
    filled: dict[str, Any] = json.loads(filled_in(json.dumps(values)))
    return filled


def fleet_in(file: Path) -> Fleet:
    """The fleet of a fleet file, or of a values file of the chart."""
    given = yaml.safe_load(file.read_text())
    return parsed_fleet(given.get("fleet", given), str(file))


def parsed_fleet(given: dict[str, Any], source: str = "fleet.yaml") -> Fleet:
    """A fleet as a file holds it."""
    return parse_fleet(yaml.safe_dump(given), source, check_engine_args=False)
