"""The kinds that tests/k8s/api.py serves: built-in ones, and those of CustomResourceDefinitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.helm.crd import faults_of

Object = dict[str, Any]

METADATA = frozenset({"metadata.name", "metadata.namespace"})
POD = METADATA | {"spec.nodeName", "spec.serviceAccountName", "status.phase"}
INVOLVED = {f"involvedObject.{field}" for field in ("kind", "namespace", "name", "uid")}
EVENT = METADATA | INVOLVED | {"reason", "type"}


@dataclass(frozen=True)
class Kind:
    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    built_in: bool = True
    fields: frozenset[str] = METADATA

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""

    @property
    def key(self) -> str:
        """As error messages name it, the same for all of its versions."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def served_at(self) -> tuple[str, str]:
        return self.api_version, self.plural

    def discovered(self) -> Object:
        return {
            "name": self.plural,
            "singularName": self.kind.lower(),
            "kind": self.kind,
            "namespaced": self.namespaced,
            "verbs": ["create", "delete", "get", "list"],
        }


def _kinds(api_version: str, *names: str, namespaced: bool = True) -> list[Kind]:
    return [
        Kind(api_version, name, _plural(name), namespaced, fields=_FIELDS.get(name, METADATA))
        for name in names
    ]


def _plural(kind: str) -> str:
    lower = kind.lower()
    if lower.endswith("s"):
        return lower if lower == "endpoints" else f"{lower}es"
    return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"


_FIELDS = {"Pod": POD, "Event": EVENT, "Secret": METADATA | {"type"}}

BUILT_IN = [
    *_kinds("v1", "Namespace", "Node", "PersistentVolume", namespaced=False),
    *_kinds("v1", "Pod", "Service", "Secret", "ConfigMap", "PersistentVolumeClaim", "Event"),
    *_kinds("v1", "ResourceQuota", "LimitRange", "ServiceAccount", "Endpoints"),
    *_kinds("apps/v1", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"),
    *_kinds("batch/v1", "Job"),
    *_kinds("coordination.k8s.io/v1", "Lease"),
    *_kinds("discovery.k8s.io/v1", "EndpointSlice"),
    *_kinds("networking.k8s.io/v1", "IngressClass", namespaced=False),
    *_kinds("networking.k8s.io/v1", "Ingress", "NetworkPolicy"),
    *_kinds("node.k8s.io/v1", "RuntimeClass", namespaced=False),
    *_kinds("policy/v1", "PodDisruptionBudget"),
    *_kinds("scheduling.k8s.io/v1", "PriorityClass", namespaced=False),
    *_kinds("storage.k8s.io/v1", "StorageClass", "CSIDriver", namespaced=False),
    *_kinds("apiextensions.k8s.io/v1", "CustomResourceDefinition", namespaced=False),
]


def crd(group: str, kind: str, *versions: str, namespaced: bool = True) -> Object:
    """A CustomResourceDefinition that serves `versions` of a kind, with any fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{_plural(kind)}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": _plural(kind), "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[-1],
                    "schema": {"openAPIV3Schema": schema},
                }
                for version in versions
            ],
        },
    }


def kinds_of(definition: Object) -> list[Kind]:
    spec = definition["spec"]
    names, namespaced = spec["names"], spec["scope"] == "Namespaced"
    return [
        Kind(f"{spec['group']}/{v['name']}", names["kind"], names["plural"], namespaced, False)
        for v in spec["versions"]
        if v["served"]
    ]


def check_custom(given: Object) -> None:
    """Raises ValueError with what is wrong with a RayService; other custom kinds may hold all."""
    if given["kind"] == "RayService" and (faults := faults_of(given)):
        raise ValueError("; ".join(faults))
