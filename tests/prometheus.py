"""What a real Prometheus says, and the queries that are put to it."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from typing import Any

import yaml

from observability import GENERATED
from observability.dashboards import expressions

VARIABLES = {
    "$pool": ".*",
    "$tenant": ".*",
    "$replica": ".*",
    "$__rate_interval": "5m",
    "$__range": "5m",
}
# What a panel shows on a fleet that has no such thing; here it would hide that a query is wrong.
_INSTEAD = re.compile(
    r"\s*(>= 0 )?or (on\(\) label_replace\(vector\(0\), [^)]*\)|vector\(0\)|0 \* [^/]*(?=\) /|$))"
)
_COMPARISON = re.compile(r" (>|<|>=|<=|==|!=) (?!bool)")
# not a label, which is followed by what it must be
_NAME = re.compile(
    r"\b(?:antefix_\w+|vllm:\w+|DCGM_\w+|(?:slo|pool|pool_priority|fleet):[\w:]+)"
    r"(?![\w:]|\s*(?:=~|!~|!=|=)\s*\")"
)


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[float]:
        """The values of an instant query, those that are numbers."""
        values = (float(series["value"][1]) for series in self._ask("query", query=expression))
        return [value for value in values if not math.isnan(value)]

    def names(self) -> set[str]:
        """Return the names of all metrics."""
        return set(self.get("label/__name__/values"))

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]

    def _ask(self, path: str, **asked: str) -> Any:
        return self.get(f"{path}?{urllib.parse.urlencode(asked)}")["result"]


def queries() -> dict[str, str]:
    """What every panel, variable, recording rule and alert asks, as it has data on a fleet that
    has everything: without what a panel shows instead, and with the truth of each comparison.
    """
    found = {}
    for file in sorted((GENERATED / "dashboards").glob("*.json")):
        for number, (title, expression) in enumerate(expressions(json.loads(file.read_text()))):
            found[f"{file.stem}: {title} ({number})"] = _INSTEAD.sub("", filled_in(expression))
    for group in yaml.safe_load((GENERATED / "rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            name = rule.get("alert") or rule["record"]
            asked = _COMPARISON.sub(r" \1 bool ", _INSTEAD.sub("", rule["expr"]))
            labels = sorted(rule.get("labels", {}).items())
            found[f"{group['name']}: {name} {labels}"] = asked
    return found


def filled_in(expression: str) -> str:
    return re.sub(r"\$\w+", lambda variable: VARIABLES[variable[0]], expression)


def asked_for(expression: str) -> set[str]:
    """The names of the metrics in it."""
    return set(_NAME.findall(expression))


def needs_gpus(expression: str) -> bool:
    return "DCGM_" in expression or "antefix_gpu_" in expression


def needs_tiers(expression: str) -> bool:
    """Whether it is about tiers of the KV cache, which most fleets do not have."""
    return any(
        part in expression for part in ("kv_tier_", "_tier_load_", "kv_offload_", "_handover_")
    )
