"""The error of a gateway that is not certain about a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Unknowable(Exception):
    """The engine's treatment of this field is unknown here, or it rejects it.

    The error never leaves `deployments.prompt`. It names the kind of field, never its value.
    """


def text_of(holder: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a string."""
    value = holder.get(name)
    if not isinstance(value, str):
        raise Unknowable(f"{name} is not a string")
    return value


def flag_of(holder: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return an optional boolean field. Other values are uncertain, because the engine may coerce
    "no" or 0."""
    value = holder.get(name, default)
    if not isinstance(value, bool):
        raise Unknowable(f"{name} is not a boolean")
    return value


def whole_number_of(holder: Mapping[str, Any], name: str) -> int | None:
    """Return a field that is a whole number, null or missing."""
    value = holder.get(name)
    if value is not None and type(value) is not int:
        raise Unknowable(f"{name} is not a whole number")
    return value


def mapping_of(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; an empty one for null or missing."""
    value = holder.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unknowable(f"{name} is not an object")
    return value


def objects_of(holder: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a field that must be a list of objects."""
    value = holder.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unknowable(f"{name} is not a list of objects")
    return value
