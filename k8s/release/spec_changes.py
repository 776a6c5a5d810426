"""Differences between two specs of a RayCluster, as KubeRay's hash sees them.

KubeRay starts a second cluster when the hash of the wanted spec differs from that of the running
cluster. The hash excludes fields that Ray's autoscaler changes. Sources: 1.5 to 1.7,
ray-operator/controllers/ray/utils/util.go, GenerateHashWithoutReplicasAndWorkersToDelete (in 1.5 in
rayservice_controller.go); rayservice_controller.go, isClusterSpecHashEqual.

The hash covers the object as Go parses it, so an empty field equals a missing one, and quantities
are numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from k8s.client.cluster import Object

_OF_GROUPS = ("replicas", "minReplicas", "maxReplicas", "scaleStrategy")
_OF_PODS_SINCE_1_6 = ("tolerations", "schedulingGates")
# the API server's defaults, which a stored object has and a submitted one has not
_DEFAULTS: Mapping[str, object] = {"numOfHosts": 1, "protocol": "TCP"}
_QUANTITIES = ("requests", "limits")
# keys that identify an item of a list
_NAMES = ("groupName", "name", "mountPath")


@dataclass(frozen=True)
class Change:
    """A change. `path` has dots; None: no value. `where` is a group of pods; empty: all."""

    where: str
    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class SpecChanges:
    """`changes` start a second cluster; `added` are groups added to the running cluster."""

    changes: tuple[Change, ...]
    added: tuple[str, ...]


def spec_changes(old: Object, new: Object, version: tuple[int, ...]) -> SpecChanges:
    """Compare two `rayClusterConfig`s under this version of KubeRay, empty if unknown."""
    before, after = _hashed(old, version), _hashed(new, version)
    groups = before.pop("workerGroupSpecs", []), after.pop("workerGroupSpecs", [])
    names_before, names_after = ([group["groupName"] for group in of] for of in groups)
    changes = list(_head_changes(before, after))
    for name in dict.fromkeys([*names_before, *names_after]):
        a, b = (next((g for g in of if g["groupName"] == name), None) for of in groups)
        if a is not None and b is not None:
            changes += [Change(name, _in_pod(path), *v) for path, *v in differences(a, b)]
    # KubeRay numbers groups from the first: only new groups at the end leave the others unchanged
    if names_after[: len(names_before)] != names_before:
        gone = [name for name in names_before if name not in names_after]
        come = [name for name in names_after if name not in names_before]
        changes += [Change(name, "", name, None) for name in gone]
        changes += [Change(name, "", None, name) for name in come]
        if not gone and not come:
            changes.append(Change("", "workerGroupSpecs", names_before, names_after))
    added = names_after[len(names_before) :]
    return SpecChanges(tuple(changes), () if changes else tuple(added))


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Return the path, with dots, of each smallest part that differs, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and _named(old) and _named(new):
        yield from differences(_by_name(old), _by_name(new), path)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{path}.{i}")
    elif old != new:
        yield path, old, new


def _head_changes(before: Object, after: Object) -> Iterator[Change]:
    heads = before.pop("headGroupSpec", {}), after.pop("headGroupSpec", {})
    for path, *values in differences(*heads):
        yield Change("head", _in_pod(path), *values)
    for path, *values in differences(before, after):
        yield Change("", path, *values)


def _in_pod(path: str) -> str:
    return path.removeprefix("template.spec.")


def _hashed(spec: Object, version: tuple[int, ...]) -> Object:
    spec = {key: value for key, value in spec.items() if key != "upgradeStrategy"}
    muted = () if version and version < (1, 6) else _OF_PODS_SINCE_1_6
    spec["headGroupSpec"] = _group(spec["headGroupSpec"], muted)
    spec["workerGroupSpecs"] = [_group(of, muted) for of in spec.get("workerGroupSpecs", ())]
    hashed: Object = _as_go_has_it(spec)
    return hashed


def _group(group: Object, muted: tuple[str, ...]) -> Object:
    kept = {key: value for key, value in group.items() if key not in _OF_GROUPS}
    template = group["template"]
    pod = {key: value for key, value in template["spec"].items() if key not in muted}
    return {**kept, "template": {**template, "spec": pod}}


def _as_go_has_it(data: Any, key: str = "") -> Any:
    if isinstance(data, Mapping):
        if key in _QUANTITIES:
            return {name: _quantity(value) for name, value in data.items()}
        kept = {name: _as_go_has_it(value, name) for name, value in data.items()}
        return {
            name: value
            for name, value in kept.items()
            if value not in (None, {}, [], "") and _DEFAULTS.get(name) != value
        }
    return [_as_go_has_it(item) for item in data] if isinstance(data, list) else data


def _quantity(text: Any) -> str:
    """Return equal values for equal amounts."""
    amount = parse_quantity(text)  # type: ignore[no-untyped-call]
    for suffix, unit in (("Gi", 2**30), ("Mi", 2**20)):
        if amount >= unit and amount % unit == 0:
            return f"{amount // unit:f}{suffix}"
    return f"{amount.normalize():f}"


def _named(items: list[Any]) -> str:
    """Return the key that identifies the items; empty if there is none."""
    for key in _NAMES:
        names = [item.get(key) for item in items if isinstance(item, Mapping)]
        if len(names) == len(items) and None not in names and len({*names}) == len(names):
            return key
    return ""


def _by_name(items: list[Any]) -> dict[str, Any]:
    return {str(item[_named(items)]): item for item in items}
