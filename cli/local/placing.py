"""Ray Serve's messages about replicas that it cannot place, in the words of `antefix up`."""

from __future__ import annotations

import json
import re

_LATE = re.compile(r"has (\d+) replicas that have taken more than \S+ to be scheduled")
_RESOURCES = re.compile(r"for each replica: (\{.*?\}), total resources available: (\{.*?\})\.")


def delay(message: str) -> str:
    """Return how many replicas wait for a place and what they lack; empty for any other message."""
    late = _LATE.search(message)
    if late is None:
        return ""
    waits = f"Ray has not yet placed {late[1]}"
    return ", ".join(filter(None, (waits, _lacks(message))))


def _lacks(message: str) -> str:
    """Return the resources that Ray lacks for each replica; empty if that is not the reason."""
    found = _RESOURCES.search(message)
    try:
        needs, free = map(json.loads, found.groups()) if found else ({}, {})
        lacking = [
            f"{needed:g} {name} (free: {free.get(name, 0.0):g})"
            for name, needed in needs.items()
            if free.get(name, 0.0) < needed
        ]
    except (AttributeError, TypeError, ValueError):
        return ""  # a form that Ray 2.5x does not use
    return f"each needs {', '.join(lacking)}" if lacking else ""
