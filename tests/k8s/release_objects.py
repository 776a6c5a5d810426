"""A release as it is in a cluster: the chart's own objects, with what KubeRay makes of them."""

from __future__ import annotations

import copy
from typing import Any

from tests.helm.fleets import SMALL, values
from tests.helm.helm import NAMESPACE, RELEASE, Object, all_of_kind, of_kind, render
from tests.k8s.objects import RAYCLUSTERS, RAYSERVICES, named, pod

POOLS = {
    "llama": {
        **SMALL,
        "slo": {"interactive": {"ttft_s": 1}},
        "autoscaling": {"max_replicas": 4},
    }
}
VALUES = values(pools=POOLS, warmNodes={"enabled": True})
LABELS = {"app.kubernetes.io/instance": RELEASE}
ACTIVE = "afx-antefix-a"


def release() -> list[Object]:
    """One of which everything is ready; the kinds it needs come first."""
    rendered = render(VALUES)
    service = of_kind(rendered, "RayService")
    service["status"] = {
        "conditions": [condition("Ready", "True", "NonZeroServeEndpoints")],
        "activeServiceStatus": {
            "rayClusterName": ACTIVE,
            "applicationStatuses": {"antefix": {"status": "RUNNING"}},
        },
    }
    owners = [*all_of_kind(rendered, "StatefulSet"), *all_of_kind(rendered, "Deployment")]
    for one in (service, *owners):
        one["metadata"]["namespace"] = NAMESPACE
    return [
        *(RAYSERVICES, RAYCLUSTERS, service, *owners, cluster_of(service, ACTIVE)),
        ray_pod("head", ACTIVE, "headgroup"),
        ray_pod("gateway", ACTIVE, "gateway"),
        ray_pod("llama-0", ACTIVE, "llama"),
        pod("redis-0", "cpu-1", **_beside("redis"), status=_ready()),
        pod("controller", "cpu-1", **_beside("warm-nodes"), status=_ready()),
        endpoints(True),
    ]


def condition(kind: str, state: str, reason: str, message: str = "") -> Object:
    when = "2026-01-01T00:00:00Z"
    return {
        "type": kind,
        "status": state,
        "reason": reason,
        "message": message,
        "lastTransitionTime": when,
    }


def cluster_of(service: Object, name: str) -> Object:
    spec = copy.deepcopy(service["spec"]["rayClusterConfig"])
    return named("ray.io/v1", "RayCluster", name, NAMESPACE, spec=spec)


def ray_pod(name: str, cluster: str, group: str, **more: Any) -> Object:
    kind = "head" if group == "headgroup" else "worker"
    labels = {"ray.io/cluster": cluster, "ray.io/group": group, "ray.io/node-type": kind, **LABELS}
    more = {"status": _ready(), "on": "a100-1", **more}
    return pod(name, namespace=NAMESPACE, labels=labels, **more)


def _beside(component: str) -> Object:
    return {"namespace": NAMESPACE, "labels": {"antefix/component": component, **LABELS}}


def _ready() -> Object:
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def endpoints(*states: bool, name: str = "afx-antefix-x", port: str = "serve") -> Object:
    """A slice of the Service that clients have; without a port, as of pods that have none of that
    name: Kubernetes leaves the port out and still takes the pods in (endpointslice/utils.go).
    """
    return named(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        name,
        NAMESPACE,
        labels={"kubernetes.io/service-name": "afx-antefix"},
        addressType="IPv4",
        ports=[{"name": port, "port": 8000}] if port else [],
        endpoints=[
            {
                "addresses": [f"10.0.{len(name)}.{i}"],
                "conditions": {"ready": state},
                "targetRef": {"kind": "Pod", "name": f"{'gateway' if port else 'engine'}-{i}"},
            }
            for i, state in enumerate(states)
        ],
    )
