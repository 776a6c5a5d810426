"""Replicas, pods and warm nodes that follow the traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from http import HTTPStatus
from typing import Any

import pytest

from tests.kubernetes.api import until
from tests.kubernetes_long.kubectl import apply, kubectl
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.pretended_gpus import pretended
from tests.kubernetes_long.release import READY_S, Release
from tests.kubernetes_long.traffic import names_of_images, names_of_nodes

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

AUTOSCALED: dict[str, Any] = {
    "fleet": {
        "pools": {
            "engine": {
                "autoscaling": {"min_replicas": 1, "max_replicas": 2, "startup_s": 40},
                "engine_args": {"max_num_seqs": 4},
                "slo": {"interactive": {"ttft_s": 2}, "batch": {"ttft_s": 120}},
            }
        }
    }
}
# more at once than one engine has places for, however fast it is
MANY = 16


def test_a_pool_grows_with_its_traffic_and_shrinks_again(release: Release) -> None:
    """Autoscaling of a pool up and down with its traffic."""
    release.settle(AUTOSCALED)
    with release.traffic(clients=MANY) as traffic:
        grew = until("a second engine's pod", lambda: engines(release) == 2, READY_S)
        measured("second pod after", grew, "s")
        until("both serve", release.is_ready, READY_S)
        both = time.time()
        until("answers of both", lambda: len(traffic.replicas(since=both)) == 2, within_s=300)
    traffic.tell()
    # more come than two engines have places for: these are refused, and no other request fails
    refused = HTTPStatus.TOO_MANY_REQUESTS
    assert not [one for one in traffic.failed() if one.status != refused]
    left = until("one pod again", lambda: engines(release) == 1, within_s=1500)
    measured("idle pod gone after", left, "s")
    autoscaler = kubectl(
        *("logs", release.pod("head"), "--namespace", release.namespace, "-c", "autoscaler")
    )
    assert "forbidden" not in autoscaler.lower()


def engines(release: Release) -> int:
    return len(release.pods("engine"))


@pytest.fixture
def gpus(release: Release) -> Iterator[None]:
    """One on each node, as far as Kubernetes knows; an engine on CPUs does not miss it."""
    with pretended(dict.fromkeys(names_of_nodes(), 1)):
        yield
        release.remove()


def test_a_placeholder_keeps_a_node_warm_until_an_engine_takes_its_place(
    release: Release, second_node: str, gpus: None
) -> None:
    """Warm node that is kept for the next engine."""
    values = deepcopy(AUTOSCALED)
    values["fleet"]["pools"]["engine"]["resources"] = {"cpus": 0.5, "gpus": 1}
    values["image"] = {"gpu": {"repository": "antefix-cpu"}}
    values["warmNodes"] = {"enabled": True, "maxPerPool": 1, "image": pause()}
    release.settle(values)
    until("one engine", lambda: engines(release) == 1, within_s=1500)
    with release.traffic(clients=MANY, every_s=5):
        with only_placeholders(release):
            until("a placeholder runs", lambda: placeholders(release) == ["Running"], READY_S)
        until("a second engine's pod", lambda: engines(release) == 2, READY_S)
    # the load has done its part: two engines at work leave a small machine no core to start one
    until("both serve", release.is_ready, READY_S)
    assert placeholders(release) != ["Running"]
    left = until("one engine again", lambda: engines(release) == 1, within_s=1500)
    measured("idle engine gone after", left, "s")


@contextmanager
def only_placeholders(release: Release) -> Iterator[None]:
    """Allow no other pods. A new node takes minutes; here the node exists already, and which of two
    controllers makes its pod first would be a race."""
    scope = {"scopeName": "PriorityClass", "operator": "DoesNotExist"}
    spec = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}}
    metadata = {"name": "only-placeholders", "namespace": release.namespace}
    apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    try:
        yield
    finally:
        kubectl("delete", "resourcequota", "only-placeholders", "--namespace", release.namespace)


def placeholders(release: Release) -> list[str]:
    pods = release.pods("placeholder")
    return [str(pod["status"].get("phase")) for pod in pods]


def pause() -> dict[str, str]:
    """An image that sleeps, for every node has one."""
    name = next(name for of_node in names_of_images() for name in of_node if "pause:" in name)
    path, _, tag = name.rpartition(":")
    registry, _, repository = path.partition("/")
    return {"registry": registry, "repository": repository, "tag": tag}
