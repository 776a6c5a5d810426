"""How a release is doing: `antefix k8s status`.

`release_of` finds it, `seen` asks the cluster for its objects, `report` makes one picture of them,
which is a function of data. What these credentials may not ask is missing from the picture, and
`denied` names it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from common.errors import Problem
from k8s.cluster import Cluster, Denied, Object

_RAY = "ray.io/v1"
_MOST_EVENTS = 5


@dataclass(frozen=True)
class ClusterObjects:
    """Plain objects; lists are empty where these credentials may not ask."""

    service: Object
    clusters: list[Object]
    pods: list[Object]
    stateful_sets: list[Object]
    deployments: list[Object]
    slices: list[Object]
    events: list[Object]
    denied: tuple[Denied, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """A pod that is not ready, and why, as the scheduler or the kubelet says it."""

    pod: str
    why: str


@dataclass(frozen=True)
class GroupStatus:
    name: str
    cluster: str
    ready: int
    wanted: int
    nodes: list[str]
    waiting: list[Waiting]

    @property
    def is_ready(self) -> bool:
        return self.ready >= self.wanted


@dataclass(frozen=True)
class Report:
    """`groups` are those of the active cluster, `coming` those of one that is to take its place,
    `beside` Redis and the like, `placeholders` of pools' warm nodes as ready of wanted.
    """

    name: str
    namespace: str
    active: str
    pending: str
    conditions: list[str]
    applications: list[str]
    groups: list[GroupStatus]
    coming: list[GroupStatus]
    beside: list[GroupStatus]
    endpoints: int
    placeholders: Mapping[str, tuple[int, int]]
    events: list[str]
    denied: list[str] = field(default_factory=list)
    is_ready: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def release_of(cluster: Cluster, namespace: str, release: str) -> Object | None:
    """Its RayService; without a name, the only one there is. Raises Problem."""
    labels = "app.kubernetes.io/name=antefix"
    if release:
        labels += f",app.kubernetes.io/instance={release}"
    found = cluster.list("rayservices", _RAY, namespace, labels)
    if len(found) > 1:
        names = ", ".join(sorted(_release_name(one) for one in found))
        raise Problem(f"namespace {namespace} has several releases: {names}", "name --release")
    return found[0] if found else None


def seen(cluster: Cluster, service: Object) -> ClusterObjects:
    """Raises Problem."""
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    labels = f"app.kubernetes.io/instance={_release_name(service)}"
    denied: list[Denied] = []

    def ask(question: Callable[[], list[Object]]) -> list[Object]:
        try:
            return question()
        except Denied as no:
            denied.append(no)
            return []

    def clusters() -> list[Object]:
        found = [
            cluster.get("rayclusters", of["rayClusterName"], _RAY, namespace)
            for of in _services(service)
            if of.get("rayClusterName")
        ]
        return [one for one in found if one is not None]

    return ClusterObjects(
        service=service,
        clusters=ask(clusters),
        pods=ask(lambda: cluster.list("pods", "", namespace, labels)),
        stateful_sets=ask(lambda: cluster.list("statefulsets", "apps/v1", namespace, labels)),
        deployments=ask(lambda: cluster.list("deployments", "apps/v1", namespace, labels)),
        slices=ask(
            lambda: cluster.list(
                "endpointslices",
                "discovery.k8s.io/v1",
                namespace,
                f"kubernetes.io/service-name={name}",
            )
        ),
        events=ask(lambda: cluster.list("events", "", namespace, fields="type=Warning")),
        denied=tuple(denied),
    )


def report(seen: ClusterObjects) -> Report:
    metadata = seen.service["metadata"]
    active, pending = (of.get("rayClusterName", "") for of in _services(seen.service))
    conditions = seen.service.get("status", {}).get("conditions", [])
    is_serving = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    groups = _ray_groups(seen, active)
    beside = [
        _group(_component(one), "", _pods_of(seen.pods, _component(one)), _replicas(one))
        for one in [*seen.stateful_sets, *seen.deployments]
        if _component(one) != "placeholder"
    ]
    endpoints = sum(
        endpoint.get("conditions", {}).get("ready", False)
        for of in seen.slices
        for endpoint in of.get("endpoints") or ()
    )
    placeholders = {
        _labels_of_pods(one)["antefix/pool"]: (
            one.get("status", {}).get("readyReplicas", 0),
            _replicas(one),
        )
        for one in seen.deployments
        if _component(one) == "placeholder"
    }
    everything = [*groups, *beside]
    return Report(
        name=metadata["name"],
        namespace=metadata["namespace"],
        active=active,
        pending=pending,
        conditions=[_condition(c) for c in conditions],
        applications=[line for of in _services(seen.service) for line in _applications(of)],
        groups=groups,
        coming=_ray_groups(seen, pending),
        beside=beside,
        endpoints=endpoints,
        placeholders=placeholders,
        events=_events(seen.events, metadata["name"]),
        denied=list(dict.fromkeys(no.what for no in seen.denied)),
        is_ready=is_serving and bool(groups) and all(group.is_ready for group in everything),
    )


def _services(service: Object) -> tuple[Object, Object]:
    """The active and the pending part of a RayService's status."""
    status = service.get("status", {})
    return status.get("activeServiceStatus", {}), status.get("pendingServiceStatus", {})


def _ray_groups(seen: ClusterObjects, cluster: str) -> list[GroupStatus]:
    if not cluster:
        return []
    pods = [p for p in seen.pods if p["metadata"]["labels"].get("ray.io/cluster") == cluster]
    made = next((c for c in seen.clusters if c["metadata"]["name"] == cluster), seen.service)
    spec = made["spec"].get("rayClusterConfig", made["spec"])
    workers = {of["groupName"]: of.get("replicas", 0) for of in spec.get("workerGroupSpecs", ())}
    return [
        _group(name, cluster, [p for p in pods if _ray_group(p) == name], wanted)
        for name, wanted in {"head": 1, **workers}.items()
    ]


def _ray_group(pod: Object) -> str:
    labels = pod["metadata"]["labels"]
    is_head = labels.get("ray.io/node-type") == "head"
    return "head" if is_head else str(labels.get("ray.io/group", ""))


def _group(name: str, cluster: str, pods: Sequence[Object], wanted: int) -> GroupStatus:
    ready = [pod for pod in pods if _is_ready(pod)]
    return GroupStatus(
        name=name,
        cluster=cluster,
        ready=len(ready),
        wanted=wanted,
        nodes=sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}),
        waiting=[Waiting(p["metadata"]["name"], _why(p)) for p in pods if not _is_ready(p)],
    )


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    leaves = pod["metadata"].get("deletionTimestamp")
    return not leaves and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _why(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "is ending"
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    for container in containers:
        if words := _stuck(container):
            return f"{container['name']}: {words}"
    for container in containers:
        if not container["ready"] and "running" in container["state"]:
            return f"{container['name']} runs and is not ready yet"
    for container in containers:
        if waiting := container["state"].get("waiting"):
            return f"{container['name']}: {waiting.get('reason', 'waits')}"
    return str(status.get("message") or status.get("reason") or status.get("phase", "unknown"))


def _stuck(container: Object) -> str:
    """Why a container waits or ended, with how it ended the last time; empty: it does neither."""
    state = container["state"]
    last = container.get("lastState", {}).get("terminated", {})
    before = (
        f", ended last with {last['reason']} ({last['exitCode']})" if last.get("reason") else ""
    )
    if waiting := state.get("waiting"):
        words = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
        return "" if waiting.get("reason") in _ON_ITS_WAY else f"{words}{before}"
    if (ended := state.get("terminated")) and ended["exitCode"]:
        return f"ended with {ended.get('reason', 'an error')} ({ended['exitCode']})"
    return ""


_ON_ITS_WAY = ("PodInitializing", "ContainerCreating")


def _pods_of(pods: Sequence[Object], component: str) -> list[Object]:
    return [p for p in pods if p["metadata"]["labels"].get("antefix/component") == component]


def _component(owner: Object) -> str:
    return str(_labels_of_pods(owner).get("antefix/component", ""))


def _labels_of_pods(owner: Object) -> Object:
    """Of a Deployment's or StatefulSet's."""
    labels: Object = owner["spec"]["template"]["metadata"].get("labels", {})
    return labels


def _replicas(owner: Object) -> int:
    return int(owner["spec"].get("replicas", 1))


def _condition(condition: Object) -> str:
    message = f": {condition['message']}" if condition.get("message") else ""
    return f"{condition['type']} {condition['status']} ({condition['reason']}){message}"


def _applications(of: Object) -> list[str]:
    """What Ray Serve says of its applications that do not run."""
    return [
        f"{name} {app.get('status', 'unknown')}: {app.get('message', '')}".rstrip(": ")
        for name, app in of.get("applicationStatuses", {}).items()
        if app.get("status") != "RUNNING"
    ]


def _events(events: Sequence[Object], name: str) -> list[str]:
    """The last warnings about the release's objects, whose names all begin with its own."""
    own = [one for one in events if one["involvedObject"].get("name", "").startswith(name)]
    lines = [
        f"{one['involvedObject']['kind']} {one['involvedObject']['name']}: "
        f"{one.get('reason', '')}: {' '.join(one.get('message', '').split())}"
        for one in sorted(own, key=_when)
    ]
    # the latest of those that say the same
    return list(dict.fromkeys(reversed(lines)))[:_MOST_EVENTS][::-1]


def _when(event: Object) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )


def _release_name(service: Object) -> str:
    return str(service["metadata"]["labels"]["app.kubernetes.io/instance"])
