"""The versions of KubeRay that the chart promises, however they were installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.api import name_of
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.nodes import cluster_script
from tests.kubernetes_long.release import Release
from tests.kubernetes_long.shapes import ONE_OF_EACH

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

OLDEST, NEWEST = "1.5.1", "1.6.2"


@pytest.fixture
def newest_afterwards(release: Release) -> Iterator[None]:
    yield
    release.remove()
    kubectl(*("delete", "deployment", "kuberay-operator", "-n", "default"), "--ignore-not-found")
    cluster_script("kuberay", NEWEST, "chart")


@pytest.mark.parametrize(
    ("version", "by"), [(OLDEST, "chart"), (OLDEST, "kustomization"), (NEWEST, "kustomization")]
)
def test_a_release_answers_and_is_upgraded(
    release: Release, newest_afterwards: None, version: str, by: str
) -> None:
    """Install and upgrade with each tested version of KubeRay."""
    release.remove()
    # the labels that it selects its pods by never change
    kubectl(*("delete", "deployment", "kuberay-operator", "-n", "default"), "--ignore-not-found")
    cluster_script("kuberay", version, *(["chart"] if by == "chart" else []))
    release.install(ONE_OF_EACH)
    measured("ready after", release.wait(), "s")
    release.upgrade({"fleet": {"pools": {"engine": {"slo": {"interactive": {"ttft_s": 29}}}}}})
    with release.traffic() as traffic:
        traffic.flow()
    assert not traffic.failed()


def test_kuberay_is_upgraded_under_a_release_and_no_pod_restarts(
    release: Release, newest_afterwards: None
) -> None:
    """Upgrade of KubeRay under load."""
    release.remove()
    cluster_script("kuberay", OLDEST, "chart")
    release.install(ONE_OF_EACH)
    release.wait()
    before = {name_of(pod) for pod in release.pods()}
    with release.traffic() as traffic:
        cluster_script("kuberay", NEWEST, "chart")
        traffic.flow(40)
        release.wait()
    traffic.tell()
    assert not traffic.failed()
    assert {name_of(pod) for pod in release.pods()} == before
    restarts = kubectl(
        *("get", "pods", "--namespace", release.namespace),
        *("-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}"),
    )
    assert set(restarts.split()) == {"0"}
