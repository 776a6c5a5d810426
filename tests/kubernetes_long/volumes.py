"""Volumes that are folders of one node, as where disks are local and no driver makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.kubernetes_long.kubectl import apply, kubectl
from tests.kubernetes_long.visitors import leave, visitor, within

STORAGE = "antefix-tests"
_PARENT = "/var/lib/antefix-tests"


@contextmanager
def volume(
    name: str,
    node: str,
    image: str,
    mode: str = "ReadWriteOnce",
    *,
    size: str = "2Gi",
    is_shared: bool = False,
) -> Iterator[None]:
    """An empty volume of class STORAGE, for pods of that node only unless it `is_shared`: all nodes
    of one machine have the same folders."""
    _folder(node, image, f"rm -rf /host/{name}; mkdir /host/{name}; chmod 777 /host/{name}")
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    here = {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}
    apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": [mode],
                "storageClassName": STORAGE,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"{_PARENT}/{name}"},
                "nodeAffinity": None if is_shared else {"required": here},
            },
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": STORAGE},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    try:
        yield
    finally:
        kubectl("delete", "persistentvolume", name, "--wait=false")
        kubectl("delete", "storageclass", STORAGE, "--ignore-not-found")
        _folder(node, image, f"rm -rf /host/{name}")


def _folder(node: str, image: str, command: str) -> None:
    visitor(
        "folder",
        image,
        ["sleep", "600"],
        nodeName=node,
        securityContext={"runAsUser": 0},
        volumes=[{"name": "host", "hostPath": {"path": _PARENT, "type": "DirectoryOrCreate"}}],
        mounts=[{"name": "host", "mountPath": "/host"}],
    )
    try:
        within("folder", "bash", "-c", command)
    finally:
        leave("folder")
