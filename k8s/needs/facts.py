"""Facts that `k8s.preflight` reads from a cluster, all at once, and evaluates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from k8s.client.cluster import Cluster, Denied, Object
from k8s.needs.needs import ClusterNeeds, Reference

RAYSERVICES = "ray.io/v1/rayservices"
_OPERATOR = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
_GROUP_OF = {"runtimeclasses": "node.k8s.io/v1"}
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Facts:
    """Plain objects of the cluster. None: these credentials may not read them; see `denied`."""

    version: Object
    apis: frozenset[str]
    namespace: str
    release: str
    operators: list[Object] | None
    nodes: list[Object] | None
    pods: list[Object] | None
    nodes_come: bool
    own_namespace: Object | None
    quotas: list[Object] | None
    limit_ranges: list[Object] | None
    storage_classes: list[Object] | None
    csi_drivers: list[Object] | None
    ingress_classes: list[Object] | None
    referenced: Mapping[Reference, Object | None]
    denied: tuple[Denied, ...]

    @property
    def is_installed(self) -> bool:
        """Whether the cluster already has pods of the release."""
        return any(
            pod["metadata"]["namespace"] == self.namespace
            and pod["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == self.release
            for pod in self.pods or ()
        )


def gather(cluster: Cluster, needs: ClusterNeeds, namespace: str, release: str) -> Facts:
    """Read the facts. Raises Problem."""
    denied: list[Denied] = []

    def ask(question: Callable[[], _Answer]) -> _Answer | None:
        try:
            return question()
        except Denied as no:
            denied.append(no)
            return None

    referenced: dict[Reference, Object | None] = {}
    for reference in needs.references:
        group = _GROUP_OF.get(reference.plural, "")
        where = "" if group else namespace
        try:
            found = cluster.get(reference.plural, reference.name, group, where)
        except Denied as no:
            denied.append(no)
        else:
            referenced[reference] = found
    return Facts(
        version=cluster.version(),
        apis=frozenset(api for api in (RAYSERVICES, *needs.apis) if cluster.serves(api)),
        namespace=namespace,
        release=release,
        operators=ask(lambda: cluster.list("deployments", "apps/v1", labels=_OPERATOR)),
        nodes=ask(lambda: cluster.list("nodes")),
        pods=ask(lambda: cluster.list("pods", fields=_RUNNING)),
        nodes_come=_nodes_come(cluster),
        own_namespace=ask(lambda: cluster.get("namespaces", namespace)),
        quotas=ask(lambda: cluster.list("resourcequotas", namespace=namespace)),
        limit_ranges=ask(lambda: cluster.list("limitranges", namespace=namespace)),
        storage_classes=ask(lambda: cluster.list("storageclasses", "storage.k8s.io/v1"))
        if needs.claims
        else [],
        csi_drivers=ask(lambda: cluster.list("csidrivers", "storage.k8s.io/v1"))
        if any(claim.is_shared for claim in needs.claims)
        else [],
        ingress_classes=ask(lambda: cluster.list("ingressclasses", "networking.k8s.io/v1"))
        if needs.ingress
        else [],
        referenced=referenced,
        denied=tuple(denied),
    )


def _nodes_come(cluster: Cluster) -> bool:
    """Return whether nodes are added for pending pods, by Karpenter or the cluster autoscaler."""
    if cluster.has_group("karpenter.sh"):
        return True
    try:
        # the autoscaler writes its state there: --write-status-configmap, on by default
        found = cluster.get("configmaps", "cluster-autoscaler-status", namespace="kube-system")
    except Denied:
        return False
    return found is not None
