"""The Ray Serve applications of a fleet, and the processes that a change restarts.

The gateways are one application, and each pool of engines is one. Ray Serve restarts all of an
application whose `args` differ in any way. If they are equal, it restarts nothing
(`get_app_code_version` in ray/serve/_private/deploy_utils.py, 2.60). So `args` contain only cold
settings, which a process reads when it starts. All other settings are hot. They go to running
gateways as `user_config` of their deployment, and from there through Redis to engines and the
autoscaler.

The type of each setting has the mark of its kind (`deployments.fleet.reach`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.fleet.reach import Reach, Withheld, marked

# Ray Serve's names of the application and the deployment of gateways. A pool's deployment has the
# pool's name.
GATEWAYS_APPLICATION = "antefix"
GATEWAYS_DEPLOYMENT = "gateway"

COLD_FOR_ALL = marked(Fleet, Reach.FLEET)
COLD_FOR_GATEWAYS = marked(Fleet, Reach.GATEWAYS)
COLD_FOR_POOL = marked(Pool, Reach.POOL)
HOT, HOT_OF_POOL = marked(Fleet, Reach.HOT), marked(Pool, Reach.HOT)
# Gateways do not get these.
UNTOLD, UNTOLD_OF_POOL = (marked(of, Withheld.FROM_GATEWAYS) for of in (Fleet, Pool))


@dataclass(frozen=True)
class Restarts:
    """The effects of a change of a fleet.

    `pools`: pools whose engines restart. Pools that are added or removed are only in `added` and
    `removed`. `reaches_running`: the changed hot fields, such as `pools.engine.slo`, which running
    processes apply within seconds.
    """

    gateways: bool
    pools: frozenset[str]
    added: frozenset[str]
    removed: frozenset[str]
    reaches_running: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether no running process restarts."""
        return not (self.gateways or self.pools or self.removed)


def restarts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Restarts:
    """Return what restarts if Ray Serve gets the fleet `new` after `old`.

    Both are in the form of the Ray Serve configuration (the chart's `antefix.fleet`), without
    defaults filled in. Ray Serve compares texts, so writing out a default restarts too. A null
    equals a missing key.
    """
    before, after = old.get("pools") or {}, new.get("pools") or {}
    common = sorted(before.keys() & after.keys())
    hot = [path for path in HOT if _text(_cut(old, (path,))) != _text(_cut(new, (path,)))]
    hot += [
        f"pools.{name}.{path}"
        for name in common
        for path in HOT_OF_POOL
        if _text(_cut(before[name], (path,))) != _text(_cut(after[name], (path,)))
    ]
    return Restarts(
        gateways=_text(args_of_gateways(old)) != _text(args_of_gateways(new)),
        pools=frozenset(
            name
            for name in common
            if _text(args_of_pool(old, name)) != _text(args_of_pool(new, name))
        ),
        added=frozenset(after.keys() - before.keys()),
        removed=frozenset(before.keys() - after.keys()),
        reaches_running=tuple(hot),
    )


def application_of(pool: str) -> str:
    """Return the name of the pool's application."""
    return f"{GATEWAYS_APPLICATION}-{pool}"


def is_application(name: str) -> bool:
    """Return whether an application of Ray Serve is one of these."""
    return name == GATEWAYS_APPLICATION or name.startswith(f"{GATEWAYS_APPLICATION}-")


def serve_config(fleet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole configuration for Ray Serve, for `serve deploy` and a RayService. The chart
    writes the same.
    """
    gateways: dict[str, Any] = {
        "name": GATEWAYS_APPLICATION,
        "route_prefix": None,
        "import_path": "deployments.app:build_gateways",
        "args": args_of_gateways(fleet),
        "deployments": [
            {
                "name": GATEWAYS_DEPLOYMENT,
                "num_replicas": (fleet.get("gateway") or {}).get("replicas") or 1,
                "max_surge_percent": fleet.get("surge_percent") or 0,
                "user_config": settings_of(fleet),
            }
        ],
    }
    pools = [
        {
            "name": application_of(name),
            "route_prefix": None,
            "import_path": "deployments.app:build_pool",
            "args": args_of_pool(fleet, name),
        }
        for name in sorted(fleet["pools"])
    ]
    # clients connect to gateways, not to Ray Serve's HTTP proxy
    return {"proxy_location": "Disabled", "applications": [gateways, *pools]}


def fleet_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fleet in the configuration of `serve_config`, or of a chart that gave it whole to
    one application.
    """
    fleet: dict[str, Any] = {}
    for application in config["applications"]:
        for deployment in application.get("deployments") or ():
            fleet = _together(fleet, deployment.get("user_config") or {})
        fleet = _together(fleet, application["args"]["fleet"])
    return fleet


def args_of_gateways(fleet: Mapping[str, Any]) -> dict[str, Any]:
    """Return `args` of the gateways' application: its cold settings."""
    return {"fleet": _cut(fleet, (*COLD_FOR_ALL, *COLD_FOR_GATEWAYS))}


def args_of_pool(fleet: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return `args` of a pool's application: its cold settings, as a fleet of this pool."""
    pool = _cut(fleet["pools"][name], COLD_FOR_POOL)
    return {"fleet": {**_cut(fleet, COLD_FOR_ALL), "pools": {name: pool}}}


def settings_of(fleet: Mapping[str, Any]) -> dict[str, Any]:
    """Return `user_config` of the gateways: the fleet without settings of other processes."""
    settings = _without(fleet, UNTOLD)
    pools = {name: _without(pool, UNTOLD_OF_POOL) for name, pool in fleet["pools"].items()}
    return {**settings, "pools": pools}


def _cut(section: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the values at the paths, of one or two keys, except nulls."""
    found: dict[str, Any] = {}
    for path in paths:
        first, _, second = path.partition(".")
        value = section.get(first)
        if second:
            value = (value or {}).get(second)
        if value is None:
            continue
        if second:
            found.setdefault(first, {})[second] = value
        else:
            found[first] = value
    return found


def _together(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], Mapping) and isinstance(other[key], Mapping):
            both[key] = _together(one[key], other[key])
    return both


def _without(section: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    rest = dict(section)
    for path in paths:
        first, _, second = path.partition(".")
        if not second:
            rest.pop(first, None)
        elif isinstance(rest.get(first), Mapping):
            rest[first] = {key: of for key, of in rest[first].items() if key != second}
    return rest


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
