"""The answer of a gateway that is not certain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Unknowable(Exception):
    """What the engine makes of this cannot be told here, or the engine refuses it.

    Never leaves `deployments.prompt`. Says what kind of field it was, never what it held.
    """


def text_of(holder: Mapping[str, Any], name: str) -> str:
    """A field that must be a string."""
    value = holder.get(name)
    if not isinstance(value, str):
        raise Unknowable(f"{name} is not a string")
    return value


def flag_of(holder: Mapping[str, Any], name: str, default: bool) -> bool:
    """A field that must be true or false where it is given: the engine's own idea of "no" or 0
    is not ours to guess."""
    value = holder.get(name, default)
    if not isinstance(value, bool):
        raise Unknowable(f"{name} is not a boolean")
    return value


def whole_number_of(holder: Mapping[str, Any], name: str) -> int | None:
    """A field that is a whole number, null or not there."""
    value = holder.get(name)
    if value is not None and type(value) is not int:
        raise Unknowable(f"{name} is not a whole number")
    return value


def mapping_of(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object; an empty one for null or nothing."""
    value = holder.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unknowable(f"{name} is not an object")
    return value


def objects_of(holder: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that must be a list of objects."""
    value = holder.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unknowable(f"{name} is not a list of objects")
    return value
