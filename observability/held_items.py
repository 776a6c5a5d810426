"""What a process holds: the lengths of the containers that live as long as one object of ours."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Mapping
from itertools import islice

OURS = ("autoscaling", "common", "deployments", "observability", "router")
# What a fleet file says does not grow by itself.
_SETTINGS = "deployments.fleet"
# Of a container's items, how many are looked into: a few pools, not thousands of requests.
LOOKED_INTO = 16


def held_items(root: object) -> Counter[str]:
    """Items by `Class.attribute` of what holds them, added up over all objects of a class.

    It goes from attribute to attribute, and to the first items of a container, as long as those
    are objects of ours. A gateway's take it a millisecond or two.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    looked_at = [root]
    while looked_at:
        holder = looked_at.pop()
        if id(holder) in seen or not (holder is root or _is_ours(holder)):
            continue
        seen.add(id(holder))
        for name, value in vars(holder).items():
            if isinstance(value, asyncio.Queue):
                found[_named(holder, name)] += value.qsize()
            elif isinstance(value, Mapping | list | set | deque):
                found[_named(holder, name)] += len(value)
                items: Collection[object] = value.values() if isinstance(value, Mapping) else value
                looked_at += islice(items, LOOKED_INTO)
            else:
                looked_at.append(value)
    return found


def _named(holder: object, attribute: str) -> str:
    return f"{type(holder).__name__}.{attribute}".replace("._", ".").lstrip("_")


def _is_ours(holder: object) -> bool:
    module = type(holder).__module__
    return (
        module.partition(".")[0] in OURS
        and not module.startswith(_SETTINGS)
        and hasattr(holder, "__dict__")
    )
