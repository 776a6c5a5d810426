"""Weights from a hub, downloaded onto a volume that pods of one node alone can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes_long.kubectl import get, objects
from tests.kubernetes_long.release import Release
from tests.kubernetes_long.visitors import NAMESPACE, leave, visitor
from tests.kubernetes_long.volumes import STORAGE, volume

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

HUB = Path(__file__).with_name("hub.py").read_text()
NAME, PORT = "tests/small", 8080


@pytest.mark.parametrize(
    ("mode", "jobs"), [("ReadWriteOnce", 0), ("ReadWriteMany", 1)], ids=["by-engines", "by-a-job"]
)
def test_weights_are_downloaded_before_engines_start(
    release: Release, second_node: str, mode: str, jobs: int
) -> None:
    """Download of weights to a volume, by the engines or by a Job."""
    release.remove()
    visitor("hub", release.image, ["python", "-c", HUB, NAME, str(PORT)])
    pod = get("pod", "hub", NAMESPACE)
    assert pod
    address = {"name": "HF_ENDPOINT", "value": f"http://{pod['status']['podIP']}:{PORT}"}
    little: dict[str, Any] = {"requests": {"cpu": "50m", "memory": "256Mi"}}
    values = {
        "fleet": {"pools": {"engine": {"model": NAME}}},
        "enginePods": {"env": [address]},
        "models": {
            "storage": "pvc",
            "pvc": {"size": "1Gi", "storageClass": STORAGE, "accessModes": [mode]},
            "download": {"enabled": True, "resources": {**little, "limits": {"memory": "1Gi"}}},
        },
    }
    try:
        with volume("models", second_node, release.image, mode):
            release.settle(values)
            assert len(objects("jobs", release.namespace)) == jobs
            assert {pod["spec"]["nodeName"] for pod in release.pods("engine")} == {second_node}
            with release.traffic() as traffic:
                traffic.flow()
            assert not traffic.failed()
            release.remove()
    finally:
        leave("hub")
