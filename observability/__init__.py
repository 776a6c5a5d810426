"""Metrics, alerts, dashboards and traces of a fleet."""

from pathlib import Path

# What `make observability` writes. It is in the chart because Helm reads nothing outside of it.
GENERATED = Path(__file__).parents[1] / "helm" / "antefix" / "files"
