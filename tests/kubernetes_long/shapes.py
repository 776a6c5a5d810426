"""Releases that tests settle on. The first node is never removed: what must stay runs on it."""

from __future__ import annotations

from typing import Any

from tests.kubernetes_long.volumes import STORAGE

HOST = "kubernetes.io/hostname"

ONE_OF_EACH: dict[str, Any] = {}
TWO_ENGINES: dict[str, Any] = {"fleet": {"pools": {"engine": {"replicas": 2}}}}


def two_of_each(first_node: str) -> dict[str, Any]:
    """One of each may go and the other serves: on two nodes, one on each."""
    here = {HOST: first_node}
    apart = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"antefix/component": "engine"}}}
    preferred = [{"weight": 100, "podAffinityTerm": apart}]
    return {
        "fleet": {"gateway": {"replicas": 2}, "pools": {"engine": {"replicas": 2}}},
        "rayHead": {"nodeSelector": here},
        "redis": {"nodeSelector": here},
        "enginePods": {
            "affinity": {
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
            }
        },
    }


def fault_tolerant(first_node: str) -> dict[str, Any]:
    """Takes a volume of that node."""
    return two_of_each(first_node) | {
        "gcsFaultTolerance": {"enabled": True},
        "redis": {
            "nodeSelector": {HOST: first_node},
            "persistence": {"enabled": True, "size": "1Gi", "storageClass": STORAGE},
        },
    }
