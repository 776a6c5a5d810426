"""The effects of an upgrade to other values: `antefix k8s diff`.

An upgrade changes a RayService in two ways. Ray Serve gets another fleet, which restarts nothing,
some pools' engines, or the gateways: see `deployments.fleet.applications`. KubeRay compares the
pods' specs, and starts a second cluster if they differ.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from deployments.fleet.applications import GATEWAYS_APPLICATION, fleet_of, restarts
from k8s.client.cluster import Object
from k8s.needs.needs import ClusterNeeds, PodGroup, requests_of, surge_pods
from k8s.preflight.kuberay import version_of
from k8s.release.release import ClusterObjects, parts_of
from k8s.release.spec_changes import Change, SpecChanges, differences, spec_changes

_VERSION = "ray.io/kuberay-version"
_POOL, _COMPONENT = "antefix/pool", "antefix/component"
# values that are not printed: they may be a token or a password
_SECRETS = (".env.", ".redis.url.")


@dataclass(frozen=True)
class Gpus:
    """GPUs of the release. `now`: those of its pods.

    `after`: those of a new second cluster at first, or of the pods that stay. `meanwhile`: those of
    both clusters, or of the pods with the surge of `surge_percent`.
    """

    now: int
    meanwhile: int
    after: int


@dataclass(frozen=True)
class UpgradeDiff:
    """`hot` changes of the fleet reach running processes; `cold` ones restart `gateways` and the
    engines of `pools` in place.

    `pods` start a second cluster, or wait until the RayCluster is deleted if the strategy is None.
    `added` groups of pods join the running cluster.
    """

    name: str
    namespace: str
    cluster: str
    strategy: str
    under_way: bool
    hot: list[Change]
    cold: list[Change]
    gateways: bool
    pools: list[str]
    pods: list[Change]
    added: list[str]
    gpus: Gpus
    denied: list[str]

    @property
    def nothing(self) -> bool:
        """Whether pods and fleet stay unchanged."""
        return not (self.hot or self.cold or self.pods or self.added)

    @property
    def moves(self) -> bool:
        return bool(self.pods) and self.strategy != "None"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "second_cluster": self.moves}


def upgrade_diff(seen: ClusterObjects, wanted: Object, needs: ClusterNeeds) -> UpgradeDiff:
    """`seen` is the current release, `wanted` the RayService that Helm renders of the new values,
    and `needs` the needs of their pods.
    """
    metadata, spec = seen.service["metadata"], wanted["spec"]
    active, pending = (of.get("rayClusterName", "") for of in parts_of(seen.service))
    name = pending or active
    cluster = next((c for c in seen.clusters if c["metadata"]["name"] == name), None)
    told = serve_changes(seen.service["spec"]["serveConfigV2"], spec["serveConfigV2"])
    pods = _pod_changes(seen.service, cluster, spec["rayClusterConfig"])
    strategy = spec["upgradeStrategy"]["type"]
    moves = bool(pods.changes) and strategy != "None"
    return UpgradeDiff(
        name=metadata["name"],
        namespace=metadata["namespace"],
        cluster=name,
        strategy=strategy,
        under_way=bool(pending and active),
        hot=[change for change in told.changes if change.path in told.hot],
        cold=[change for change in told.changes if change.path not in told.hot],
        gateways=told.gateways,
        pools=sorted(told.pools),
        pods=list(pods.changes),
        added=list(pods.added),
        gpus=_gpus(seen.pods, needs, told, moves),
        denied=list(dict.fromkeys(no.what for no in seen.denied)),
    )


@dataclass(frozen=True)
class ServeChanges:
    """Return how Ray Serve applies another configuration. `hot` are paths of `changes`, `pools`
    those whose engines restart.
    """

    changes: tuple[Change, ...]
    hot: frozenset[str]
    gateways: bool
    pools: frozenset[str]
    surge_percent: int


def serve_changes(old: str, new: str) -> ServeChanges:
    before, after = yaml.safe_load(old), yaml.safe_load(new)
    fleets = fleet_of(before), fleet_of(after)
    found = restarts(*fleets)
    changes = tuple(
        Change("", f"fleet.{path}", *_shown(path, values)) for path, *values in differences(*fleets)
    )
    hot_sections = tuple(f"fleet.{path}" for path in found.reaches_running)
    hot = frozenset(c.path for c in changes if _within(c.path, hot_sections))
    both = frozenset(fleets[0]["pools"]) & frozenset(fleets[1]["pools"])
    anew = _starts_anew(before, after)
    return ServeChanges(
        changes,
        frozenset() if anew else hot,
        anew or found.gateways,
        both if anew else found.pools,
        int(fleets[1].get("surge_percent") or 0),
    )


def _starts_anew(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether all applications restart: an older chart creates them differently, or has only
    one.
    """
    old, new = (
        next(one for one in config["applications"] if one["name"] == GATEWAYS_APPLICATION)
        for config in (before, after)
    )
    is_one = len(before["applications"]) == 1
    return old["import_path"] != new["import_path"] or (is_one and old["args"] != new["args"])


def _within(path: str, sections: tuple[str, ...]) -> bool:
    return any(path == section or path.startswith(f"{section}.") for section in sections)


def _shown(path: str, values: Sequence[Any]) -> Iterator[Any]:
    """Return the keys of a whole section."""
    for value in values:
        if value is None:
            yield None
        elif any(secret in f".{path}." for secret in _SECRETS):
            yield "not shown"
        else:
            yield ", ".join(value) if isinstance(value, Mapping) else value


def _pod_changes(service: Object, cluster: Object | None, wanted: Object) -> SpecChanges:
    """Return the cluster with which KubeRay compares: the pending one, otherwise the active one."""
    if cluster is None:
        return spec_changes(service["spec"]["rayClusterConfig"], wanted, ())
    made_by = cluster["metadata"].get("annotations", {}).get(_VERSION, "")
    return spec_changes(cluster["spec"], wanted, version_of(f":{made_by}"))


def _gpus(pods: Sequence[Object], needs: ClusterNeeds, told: ServeChanges, moves: bool) -> Gpus:
    # placeholders of warm nodes have their pool's label too, and give way
    pods = [pod for pod in pods if _label(pod, _COMPONENT) != "placeholder"]
    engines = [group for group in needs.groups if group.gpus]
    resources = {group.gpu_resource for group in engines}
    requested = [requests_of(pod["spec"]) for pod in pods]
    now = int(sum(of.get(resource, 0) for of in requested for resource in resources))
    if moves:
        first = sum(group.count * group.gpus for group in engines)
        return Gpus(now, now + first, first)
    there = Counter(_label(pod, _POOL) for pod in pods)
    stay = [(group, _stay(group, there[group.name])) for group in engines]
    after = sum(count * group.gpus for group, count in stay)
    surge = sum(
        surge_pods(group, count, told.surge_percent) * group.gpus
        for group, count in stay
        if group.name in told.pools
    )
    return Gpus(now, max(now, after) + surge, after)


def _label(pod: Object, name: str) -> str:
    return str(pod["metadata"].get("labels", {}).get(name, ""))


def _stay(group: PodGroup, there: int) -> int:
    """Return the pods of a pool whose cluster stays: the autoscaler keeps the number, within the
    bounds."""
    return max(group.least, min(there, group.most)) if there else group.count
