"""Five Grafana dashboards, generated from code and the SLO file; the same text each time.

Fleet SLO, Routing, Capacity, Engine and Tenants: docs/grafana.md describes each.
"""

from __future__ import annotations

import re
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from observability.alerts.slo_file import SloFile
from observability.dashboards import capacity, engine, fleet_slo, routing, tenants

_MODULES = (fleet_slo, routing, capacity, engine, tenants)
_LABEL_VALUES = re.compile(r"label_values\((?P<metric>.+), \w+\)")


def render(slo: SloFile) -> dict[str, str]:
    """Return the dashboards as JSON text, by file name."""
    rendered = {}
    for module in _MODULES:
        built = module.BOARD.builder(slo).build()
        # Grafana would number the panels, and a saved dashboard would differ from the rendered one.
        for number, panel in enumerate(built.panels or [], start=1):
            panel.id_val = number
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        rendered[f"{name}.json"] = JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"
    return rendered


def expressions(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Return every query of a dashboard: the panel's title, and the expression.

    The query of a variable is represented by the metric whose labels it lists.
    """
    of_panels = [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]
    of_variables = [
        (f"variable {variable['name']}", match["metric"])
        for variable in dashboard["templating"]["list"]
        if (match := _LABEL_VALUES.fullmatch(variable["query"]))
    ]
    return of_panels + of_variables
