"""The state of a release: `antefix k8s status`.

`report` is a function of the release's objects. Objects that these credentials may not read are
missing, and `denied` names them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from common.failure import gist
from k8s.client.cluster import Object
from k8s.release.ended_pods import EndedPod, ended_pods, when
from k8s.release.pods import Waiting, is_ready, leaves, waiting
from k8s.release.release import ClusterObjects, parts_of

_MOST_EVENTS = 5
_SERVE_PORT = "serve"
_JOB_NAME = "batch.kubernetes.io/job-name"


@dataclass(frozen=True)
class GroupStatus:
    """A group of pods. `extra` pods exceed the wanted number: Ray's autoscaler removes them when
    idle."""

    name: str
    cluster: str
    ready: int
    wanted: int
    extra: int
    nodes: list[str]
    waiting: list[Waiting]

    @property
    def is_ready(self) -> bool:
        return self.ready >= self.wanted


@dataclass(frozen=True)
class JobStatus:
    """A job. `state` is done, running or failed; `said` are the last log lines of its failed
    pod."""

    name: str
    state: str
    why: str = ""
    said: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """The state of a release.

    `groups`: those of the active cluster; `coming`: those of its successor; `leaving`: other
    clusters that still have pods, with their number. `beside`: Redis and other workloads.
    `placeholders`: ready and wanted placeholders of warm nodes by pool. `endpoints`: gateways that
    accept requests. `ended`: pods that failed and were deleted.
    """

    name: str
    namespace: str
    active: str
    pending: str
    conditions: list[str]
    applications: list[str]
    groups: list[GroupStatus]
    coming: list[GroupStatus]
    leaving: Mapping[str, int]
    beside: list[GroupStatus]
    jobs: list[JobStatus]
    endpoints: int
    placeholders: Mapping[str, tuple[int, int]]
    ended: list[EndedPod]
    events: list[str]
    denied: list[str] = field(default_factory=list)
    is_ready: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def report(seen: ClusterObjects) -> Report:
    metadata = seen.service["metadata"]
    active, pending = (of.get("rayClusterName", "") for of in parts_of(seen.service))
    conditions = seen.service.get("status", {}).get("conditions", [])
    is_serving = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    groups = _ray_groups(seen, active)
    beside = [
        _group(_component(one), "", _pods_of(seen.pods, _component(one)), _replicas(one))
        for one in [*seen.stateful_sets, *seen.deployments]
        if _component(one) != "placeholder"
    ]
    placeholders = {
        _labels_of_pods(one)["antefix/pool"]: (
            one.get("status", {}).get("readyReplicas", 0),
            _replicas(one),
        )
        for one in seen.deployments
        if _component(one) == "placeholder"
    }
    everything = [*groups, *beside]
    endpoints = _endpoints(seen.slices)
    # KubeRay may count engines among the serving pods
    is_reached = endpoints > 0 or any(no.resource == "endpointslices" for no in seen.denied)
    is_up = is_serving and is_reached and bool(groups)
    return Report(
        name=metadata["name"],
        namespace=metadata["namespace"],
        active=active,
        pending=pending,
        conditions=[*map(_condition, conditions), *_heads(seen.clusters)],
        applications=[line for of in parts_of(seen.service) for line in _applications(of)],
        groups=groups,
        coming=_ray_groups(seen, pending),
        leaving=_leaving(seen.pods, (active, pending)),
        beside=beside,
        jobs=[_job(one, seen.pods) for one in seen.jobs],
        endpoints=endpoints,
        placeholders=placeholders,
        ended=ended_pods(seen.deletions, metadata["name"]),
        events=_events(seen.warnings, metadata["name"]),
        denied=list(dict.fromkeys(no.what for no in seen.denied)),
        is_ready=is_up and all(group.is_ready for group in everything),
    )


def _endpoints(slices: Sequence[Object]) -> int:
    """Count the endpoints of gateways.

    A slice has no port `serve` if its pods have none: those of engines, which a Service also
    selects. A gateway with addresses of two families is in two slices.
    """
    return len(
        {
            (endpoint.get("targetRef") or {}).get("name") or endpoint["addresses"][0]
            for of in slices
            if any(port.get("name") == _SERVE_PORT for port in of.get("ports") or ())
            for endpoint in of.get("endpoints") or ()
            if endpoint.get("conditions", {}).get("ready", False)
        }
    )


def _heads(clusters: Sequence[Object]) -> Iterator[str]:
    """Return the message for a head that is not ready, which blocks every change."""
    for cluster in clusters:
        for condition in cluster.get("status", {}).get("conditions", ()):
            if condition["type"] == "HeadPodReady" and condition["status"] == "False":
                yield (
                    f"{_condition(condition)}; until it is ready, KubeRay applies no change of "
                    f"the fleet to {cluster['metadata']['name']}"
                )


def _leaving(pods: Sequence[Object], known: tuple[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pod in pods:
        cluster = pod["metadata"]["labels"].get("ray.io/cluster", "")
        if cluster and cluster not in known:
            found[cluster] = found.get(cluster, 0) + 1
    return found


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
    staying = [pod for pod in pods if not leaves(pod)]
    return GroupStatus(
        name=name,
        cluster=cluster,
        ready=sum(map(is_ready, pods)),
        wanted=wanted,
        extra=max(len(staying) - wanted, 0),
        nodes=sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}),
        waiting=waiting(pods),
    )


def _job(job: Object, pods: Sequence[Object]) -> JobStatus:
    metadata, status = job["metadata"], job.get("status", {})
    own = [p for p in pods if p["metadata"]["labels"].get(_JOB_NAME) == metadata["name"]]
    stuck = next(iter(waiting(own)), Waiting("", ""))
    for condition in status.get("conditions", ()):
        if condition["status"] != "True":
            continue
        if condition["type"] == "Complete":
            return JobStatus(metadata["name"], "done")
        if condition["type"] == "Failed":
            words = f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
            return JobStatus(metadata["name"], "failed", words, stuck.said)
    failed = status.get("failed", 0)
    tried = f"{failed} of its pods failed" if failed else ""
    why = "; ".join(filter(None, (tried, stuck.why)))
    return JobStatus(metadata["name"], "running", why, stuck.said)


def _pods_of(pods: Sequence[Object], component: str) -> list[Object]:
    return [p for p in pods if p["metadata"]["labels"].get("antefix/component") == component]


def _component(owner: Object) -> str:
    return str(_labels_of_pods(owner).get("antefix/component", ""))


def _labels_of_pods(owner: Object) -> Object:
    """Return the state of a Deployment or StatefulSet."""
    labels: Object = owner["spec"]["template"]["metadata"].get("labels", {})
    return labels


def _replicas(owner: Object) -> int:
    return int(owner["spec"].get("replicas", 1))


def _condition(condition: Object) -> str:
    message = f": {condition['message']}" if condition.get("message") else ""
    return f"{condition['type']} {condition['status']} ({condition['reason']}){message}"


def _applications(of: Object) -> Iterator[str]:
    """Return Ray Serve's messages about applications and deployments that do not run."""
    for name, app in of.get("applicationStatuses", {}).items():
        if app.get("status") != "RUNNING":
            yield _told(name, app)
        for deployment, state in app.get("serveDeploymentStatuses", {}).items():
            if state.get("status") != "HEALTHY" and state.get("message"):
                yield _told(f"{name}: {deployment}", state)


def _told(name: str, of: Object) -> str:
    """Return the reason in a message, which may contain a whole traceback."""
    message = of.get("message", "")
    words = gist(message) if "\n" in message else message
    return f"{name} {of.get('status', 'unknown')}: {words}".rstrip(": ")


def _events(events: Sequence[Object], name: str) -> list[str]:
    """Return the last warnings about the release's objects, whose names all start with its name."""
    own = [one for one in events if one["involvedObject"].get("name", "").startswith(name)]
    lines = [
        f"{one['involvedObject']['kind']} {one['involvedObject']['name']}: "
        f"{one.get('reason', '')}: {' '.join(one.get('message', '').split())}"
        for one in sorted(own, key=when)
    ]
    # the latest of equal events
    return list(dict.fromkeys(reversed(lines)))[:_MOST_EVENTS][::-1]
