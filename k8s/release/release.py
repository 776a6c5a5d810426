"""The objects of a release in a cluster, for `antefix k8s status` and `antefix k8s diff`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from common.errors import Problem
from k8s.client.cluster import Cluster, Denied, Object

RAY = "ray.io/v1"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class ClusterObjects:
    """Plain objects; lists are empty if these credentials may not read them.

    `warnings` are events of the namespace. `deletions` are events in which KubeRay reports how a
    deleted pod ended.
    """

    service: Object
    clusters: list[Object]
    pods: list[Object]
    stateful_sets: list[Object]
    deployments: list[Object]
    jobs: list[Object]
    slices: list[Object]
    warnings: list[Object]
    deletions: list[Object]
    denied: tuple[Denied, ...] = ()


def release_of(cluster: Cluster, namespace: str, release: str) -> Object | None:
    """Return the RayService; without a name, the only one in the namespace. Raises Problem."""
    labels = "app.kubernetes.io/name=antefix"
    if release:
        labels += f",app.kubernetes.io/instance={release}"
    found = cluster.list("rayservices", RAY, namespace, labels)
    if len(found) > 1:
        names = ", ".join(sorted(release_name(one) for one in found))
        message = f"namespace {namespace} has several releases: {names}"
        raise Problem(message, "pass one of them as RELEASE")
    return found[0] if found else None


def release_name(service: Object) -> str:
    return str(service["metadata"]["labels"]["app.kubernetes.io/instance"])


def parts_of(service: Object) -> tuple[Object, Object]:
    """Return the active and the pending part of a RayService's status."""
    status = service.get("status", {})
    return status.get("activeServiceStatus", {}), status.get("pendingServiceStatus", {})


def seen(cluster: Cluster, service: Object) -> ClusterObjects:
    """Read the release's objects. Raises Problem."""
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    labels = f"app.kubernetes.io/instance={release_name(service)}"
    denied: list[Denied] = []

    def ask(question: Callable[[], list[_Answer]]) -> list[_Answer]:
        try:
            return question()
        except Denied as no:
            denied.append(no)
            return []

    def own(plural: str, group: str = "", selector: str = labels) -> list[Object]:
        return ask(lambda: cluster.list(plural, group, namespace, selector))

    def events(*fields: str) -> list[Object]:
        return ask(
            lambda: [
                event
                for field in fields
                for event in cluster.list("events", "", namespace, fields=field)
            ]
        )

    def clusters() -> list[Object]:
        found = [
            cluster.get("rayclusters", of["rayClusterName"], RAY, namespace)
            for of in parts_of(service)
            if of.get("rayClusterName")
        ]
        return [one for one in found if one is not None]

    return ClusterObjects(
        service=service,
        clusters=ask(clusters),
        pods=own("pods"),
        stateful_sets=own("statefulsets", "apps/v1"),
        deployments=own("deployments", "apps/v1"),
        jobs=own("jobs", "batch/v1"),
        # of the Service for clients, which has the RayService's name
        slices=own("endpointslices", "discovery.k8s.io/v1", f"kubernetes.io/service-name={name}"),
        warnings=events("type=Warning"),
        deletions=events("reason=DeletedWorkerPod", "reason=DeletedHeadPod"),
        denied=tuple(denied),
    )
