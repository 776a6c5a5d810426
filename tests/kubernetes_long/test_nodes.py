"""A node of two is drained, and one is lost, under traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kubernetes.api import is_ending, until
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.nodes import cluster_script, is_node_ready
from tests.kubernetes_long.release import READY_S, Release
from tests.kubernetes_long.shapes import two_of_each

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]


@pytest.fixture
def spread(release: Release, first_node: str, second_node: str) -> Release:
    """Two gateways and two engines, one of each on the second node."""
    release.settle(two_of_each(first_node))
    for component in ("gateway", "engine"):
        if len({pod["spec"]["nodeName"] for pod in release.pods(component)}) < 2:
            release.remove()
            release.settle(two_of_each(first_node))
    assert {pods_on_node(release, second_node, c) for c in ("gateway", "engine")} == {1}
    return release


def pods_on_node(release: Release, node: str, component: str) -> int:
    return sum(pod["spec"].get("nodeName") == node for pod in release.pods(component))


@pytest.fixture
def uncordoned(second_node: str) -> Iterator[None]:
    yield
    kubectl("uncordon", second_node)


def test_draining_a_node_fails_no_request(
    spread: Release, second_node: str, uncordoned: None
) -> None:
    """Drain of a node under load."""
    with spread.traffic() as traffic:
        began = time.monotonic()
        kubectl(
            *("drain", second_node, "--ignore-daemonsets", "--delete-emptydir-data"),
            *("--timeout", "20m"),
            within_s=1300,
        )
        measured("drained after", time.monotonic() - began, "s")
        counted = [0]

        def is_settled() -> bool:
            counted.append(sum(not is_ending(pod) for pod in spread.pods("engine")))
            return spread.is_alone() and spread.is_ready()

        until("two of each again", is_settled, READY_S)
        measured("two of each ready after", time.monotonic() - began, "s")
        measured("maximum engine pods", max(counted), "")
    traffic.tell()
    assert not traffic.failed()
    assert not pods_on_node(spread, second_node, "gateway") + pods_on_node(
        spread, second_node, "engine"
    )


def test_losing_a_node_leaves_the_other_serving(spread: Release, second_node: str) -> None:
    """Loss of a node under load."""
    number = second_node.rpartition("-")[2]
    with spread.traffic() as traffic:
        lost = time.time()
        cluster_script("node", number, "kill")
        try:
            until("Kubernetes has noticed", lambda: not is_node_ready(second_node), within_s=120)
            noticed = time.time()
            measured("noticed after", noticed - lost, "s")
            traffic.flow(20)
        finally:
            cluster_script("node", number, "start")
        until("the node is back", lambda: is_node_ready(second_node), within_s=300)
        spread.wait()
        measured("two of each ready after", time.time() - noticed, "s")
    traffic.tell()
    # one that entered at the lost gateway, or waited for the lost engine, before anybody knew
    assert not [one for one in traffic.failed() if one.began > noticed + 10]
