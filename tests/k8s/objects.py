"""Kubernetes objects for tests, as short as a cluster would take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.k8s.kinds import crd

Object = dict[str, Any]

A100 = "NVIDIA-A100-SXM4-80GB"
NAMESPACE = "llm"
RAYSERVICES = crd("ray.io", "RayService", "v1")
RAYCLUSTERS = crd("ray.io", "RayCluster", "v1")


def node(
    name: str,
    gpus: int = 0,
    *,
    cpu: str = "64",
    memory: str = "512Gi",
    model: str = A100,
    labels: Mapping[str, str] | None = None,
    taints: list[Object] | None = None,
    ready: bool = True,
    cordoned: bool = False,
) -> Object:
    """With `gpus`, labelled and tainted as GPU nodes are."""
    own = {"kubernetes.io/hostname": name}
    if gpus:
        own["nvidia.com/gpu.product"] = model
        own["nvidia.com/cuda.driver-version.major"] = "580"
        taints = taints or [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "present"}]
    room = {"cpu": cpu, "memory": memory, "pods": "110"} | (
        {"nvidia.com/gpu": str(gpus)} if gpus else {}
    )
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own | dict(labels or {})},
        "spec": {"taints": taints or [], "unschedulable": cordoned},
        "status": {
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def pod(
    name: str,
    on: str = "",
    *,
    namespace: str = "default",
    gpus: int = 0,
    cpu: str = "1",
    labels: Mapping[str, str] | None = None,
    spec: Object | None = None,
    status: Object | None = None,
) -> Object:
    requests = {"cpu": cpu} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {
        "name": "main",
        "image": "x",
        "resources": {
            "requests": requests,
            "limits": {"nvidia.com/gpu": str(gpus)} if gpus else {},
        },
    }
    where = {"nodeName": on} if on else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {"containers": [container], **where, **(spec or {})},
        "status": status or {"phase": "Running"},
    }


def deployment(
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    image: str = "x",
    *,
    args: list[str] | None = None,
    replicas: int = 1,
    ready: int = 1,
) -> Object:
    container = {"name": "main", "image": image, "args": args or []}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": dict(labels)},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {"containers": [container]},
            },
        },
        "status": {"replicas": replicas, "readyReplicas": ready},
    }


def operator(
    version: str = "v1.5.1",
    ready: int = 1,
    args: list[str] | None = None,
    name: str = "kuberay-operator",
) -> Object:
    """`name` as labels have it: its kustomization says kuberay."""
    labels = {"app.kubernetes.io/name": name}
    image = f"quay.io/kuberay/operator:{version}"
    return deployment("kuberay-operator", "kuberay", labels, image, args=args, ready=ready)


def named(
    api_version: str,
    kind: str,
    name: str,
    namespace: str = "",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **fields: Any,
) -> Object:
    metadata: Object = {"name": name}
    metadata |= {"namespace": namespace} if namespace else {}
    metadata |= {"annotations": dict(annotations)} if annotations else {}
    metadata |= {"labels": dict(labels)} if labels else {}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def secret(name: str, *keys: str, type: str = "Opaque") -> Object:
    data = dict.fromkeys(keys, "eA==")
    return named("v1", "Secret", name, NAMESPACE, type=type, data=data)


def storage_class(
    name: str,
    provisioner: str = "nfs.csi.k8s.io",
    default: bool = False,
    parameters: Mapping[str, str] | None = None,
) -> Object:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    made = named("storage.k8s.io/v1", "StorageClass", name, annotations=annotations)
    return {**made, "provisioner": provisioner, "parameters": dict(parameters or {})}


def quota(name: str, hard: Mapping[str, str], used: Mapping[str, str] | None = None) -> Object:
    status = {"hard": dict(hard), "used": dict(used or {})}
    spec = {"hard": dict(hard)}
    return named("v1", "ResourceQuota", name, NAMESPACE, spec=spec, status=status)


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Object:
    return named("v1", "Namespace", name, labels=labels)
