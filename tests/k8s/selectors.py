"""Label and field selectors, as the Kubernetes API reads them."""

from __future__ import annotations

import re
from typing import Any

Object = dict[str, Any]


class Unsupported(ValueError):
    """A selector that an API server refuses, or that is not played here."""


def matches_labels(given: Object, selector: str) -> bool:
    labels = given["metadata"].get("labels", {})
    # commas inside the brackets of "in (a, b)" part nothing
    return all(_label(labels, part.strip()) for part in re.split(r",(?![^(]*\))", selector) if part)


def _label(labels: dict[str, str], part: str) -> bool:
    if found := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", part):
        key, how, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        return (labels.get(key) in values) == (how == "in")
    if found := re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)", part):
        key, how, value = found.groups()
        return (labels.get(key) == value) == (how != "!=")
    if found := re.fullmatch(r"(!?)([^=!\s]+)", part):
        return (found[2] in labels) != bool(found[1])
    raise Unsupported(f"unable to parse requirement: {part}")


def matches_fields(given: Object, selector: str, supported: frozenset[str]) -> bool:
    for part in filter(None, selector.split(",")):
        found = re.fullmatch(r"([^=!]+?)(==|=|!=)(.*)", part)
        if found is None or found[1] not in supported:
            raise Unsupported(f"field label not supported: {part}")
        value: Any = given
        for key in found[1].split("."):
            value = value.get(key, "") if isinstance(value, dict) else ""
        if (str(value) == found[3]) == (found[2] == "!="):
            return False
    return True
