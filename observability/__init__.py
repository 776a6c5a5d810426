"""Metrics, alerts, dashboards and traces of a fleet."""

from pathlib import Path

# The output of `make observability`. It is in the chart, because Helm reads no files outside it.
GENERATED = Path(__file__).parents[1] / "helm" / "antefix" / "files"
