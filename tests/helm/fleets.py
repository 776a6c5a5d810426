"""Fleets for templates: values with the least that the chart takes, and what a test adds."""

from collections.abc import Mapping
from typing import Any

SMALL = {"model": "embedded"}


def values(
    *, pools: Mapping[str, Any] | None = None, fleet: Mapping[str, Any] | None = None, **rest: Any
) -> dict[str, Any]:
    """Values of a fleet that has these pools, with `fleet`'s keys and others of the chart."""
    return {"fleet": {"name": "small", "pools": pools or {"chat": SMALL}, **(fleet or {})}, **rest}
