"""helm/antefix/values.schema.json, generated from the types and comments of the values.

`python -m k8s.chart.chart_schema` writes it, and applications.json, which gives the templates the
fields of `deployments.fleet.applications`, and the removed keys of the fleet file. The schema
contains no references, and no choices between types that `type` can express. Helm then names the
place and the expected type of a fault, instead of every alternative.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from deployments.fleet import applications
from deployments.fleet.removed_keys import REMOVED_KEYS
from k8s.chart.chart_comments import CHART, keys_of
from k8s.chart.chart_values import ChartValues

FILE = CHART / "values.schema.json"
APPLICATIONS_FILE = CHART / "applications.json"

Schema = dict[str, Any]

# Helm adds it to the values of a chart that another depends on
_ENABLED: Schema = {
    "type": "boolean",
    "description": "For a `condition` of a chart that depends on this one; not read.",
}


def schema() -> Schema:
    """Return the whole schema, in a draft that every Helm reads."""
    raw = ChartValues.model_json_schema(by_alias=True)
    tidy: Schema = _tidied(raw, raw.pop("$defs"))
    _take_no_fleet(tidy["properties"]["fleet"])
    for path in (("fleet", "pools", "*"), ("poolPods", "*")):
        _at(tidy, path)["type"] = ["object", "null"]
    for key in keys_of((CHART / "values.yaml").read_text(encoding="utf-8")):
        if key.description:
            _at(tidy, key.path)["description"] = key.description
    renamed = yaml.safe_load((CHART / "renamed.yaml").read_text())
    former = {path: f"write {instead}" for path, instead in renamed.items()} | removed()
    for path, remedy in former.items():
        *above, name = path.split(".")
        known = _at(tidy, tuple(above))["properties"]
        assert name not in known, f"{path} is a key"
        known[name] = {"description": f"Not a key of this chart: {remedy}."}
    tidy["properties"]["enabled"] = _ENABLED
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Antefix", **tidy}


def text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def applications_text() -> str:
    """Return which fields of a fleet belong to which part of the Ray Serve configuration, and its
    removed keys."""
    fields = {
        "coldForAll": applications.COLD_FOR_ALL,
        "coldForGateways": applications.COLD_FOR_GATEWAYS,
        "coldForPool": applications.COLD_FOR_POOL,
        "untold": applications.UNTOLD,
        "untoldOfPool": applications.UNTOLD_OF_POOL,
        "removed": removed(),
    }
    return json.dumps(fields, indent=2) + "\n"


def removed() -> dict[str, str]:
    """Return the values that fleet files had, each with what replaces it."""
    return {f"fleet.{path}": remedy for path, remedy in REMOVED_KEYS.items()}


def _take_no_fleet(fleet: Schema) -> None:
    """Accept an empty fleet, the chart's default, which the chart itself rejects with a remedy."""
    del fleet["required"]
    del fleet["properties"]["pools"]["minProperties"]
    fleet["dependencies"] = {"pools": ["name"]}


def _at(schema: Schema, path: tuple[str, ...]) -> Schema:
    """Return the schema at `path`; `*` selects the schema of every name."""
    for name in path:
        if name == "*":
            (schema,) = schema["patternProperties"].values()
        else:
            schema = schema["properties"][name]
    return schema


def _tidied(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return `part` without references, titles and defaults, which other files have."""
    if isinstance(part, list):
        return [_tidied(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        part = {**definitions[part["$ref"].rpartition("/")[2]], **part}
    tidy: Schema = {
        keyword: _tidied_keys(value, definitions)
        if keyword in ("properties", "patternProperties")
        else _tidied(value, definitions)
        for keyword, value in part.items()
        if keyword not in ("$ref", "title", "default")
    }
    if "patternProperties" in tidy:
        tidy.setdefault("additionalProperties", False)
    if "anyOf" in tidy:
        choices: list[Schema] = tidy.pop("anyOf")
        tidy = {**_any_of(choices), **tidy}
    return tidy


def _tidied_keys(keys: Schema, definitions: Mapping[str, Any]) -> Schema:
    return {name: _tidied(value, definitions) for name, value in keys.items()}


def _any_of(choices: list[Schema]) -> Schema:
    """Merge a choice of different types into one schema: each keyword concerns one type only."""
    merged: Schema = {}
    for choice in choices:
        merged = {**choice, **merged}
    types = [choice["type"] for choice in choices]
    each = [t for one in types for t in (one if isinstance(one, list) else [one])]
    merged["type"] = list(dict.fromkeys(each))
    if "enum" in merged and "null" in each and None not in merged["enum"]:
        merged["enum"] = [*merged["enum"], None]
    return merged


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    APPLICATIONS_FILE.write_text(applications_text(), encoding="utf-8")
