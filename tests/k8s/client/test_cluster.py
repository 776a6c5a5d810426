"""How a cluster is asked."""

from __future__ import annotations

import pytest

from k8s.client import cluster
from k8s.client.cluster import Cluster
from tests.k8s.api import Api
from tests.k8s.objects import pod


def test_all_pages_of_a_list_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_PAGE", 2)
    names = [f"pod-{i}" for i in range(5)]
    with Api(*(pod(name) for name in names)) as api:
        found = Cluster(str(api.kubeconfig)).list("pods", fields="status.phase!=Failed")
        assert [one["metadata"]["name"] for one in found] == names
        assert [call for call in api.calls if call[1] == "pods"] == [("list", "pods", "", "")] * 3
