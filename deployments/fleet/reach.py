"""What a change of a setting restarts, as a mark in its type: `Annotated[int, Reach.HOT]`.

A mark covers the whole section below its key. `deployments.fleet.applications` reads the marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from pydantic import BaseModel


class Reach(Enum):
    """The processes that restart."""

    HOT = auto()
    """None: running processes apply the change."""
    POOL = auto()
    """The engines of the pool."""
    GATEWAYS = auto()
    """The gateways."""
    FLEET = auto()
    """The gateways and every engine."""


class Withheld(Enum):
    """Which processes do not get the setting."""

    FROM_GATEWAYS = auto()
    """They do not need it, and it may contain secrets or paths of engines."""


def marked(section: type[BaseModel], mark: Reach | Withheld) -> tuple[str, ...]:
    """Return the paths in `section` that have this mark, such as `redis.url`, sorted."""
    return tuple(sorted(_marked(section, mark)))


def _marked(section: type[BaseModel], mark: Reach | Withheld) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = field.annotation
        if mark in field.metadata:
            yield name
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from (f"{name}.{path}" for path in _marked(inner, mark))
