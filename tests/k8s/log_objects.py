"""A release of which only the labels matter, as the logs of its pods need it."""

from __future__ import annotations

from tests.k8s.objects import NAMESPACE, Object, named, pod

POOLS = ("small", "large")
_RELEASE = {"app.kubernetes.io/instance": "x"}


def log_service() -> Object:
    labels = {"app.kubernetes.io/name": "antefix", **_RELEASE}
    template = {"spec": {"containers": [{"name": "ray-head"}]}}
    head = {"rayStartParams": {}, "template": template}
    spec = {"rayClusterConfig": {"headGroupSpec": head, "workerGroupSpecs": []}}
    return named("ray.io/v1", "RayService", "x", NAMESPACE, labels=labels, spec=spec)


def log_pod(name: str, component: str, pool: str = "") -> Object:
    labels = {**_RELEASE, "antefix/component": component}
    return pod(name, namespace=NAMESPACE, labels=labels | ({"antefix/pool": pool} if pool else {}))
