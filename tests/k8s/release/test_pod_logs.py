"""How the logs of pods are followed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from k8s.client.cluster import Cluster, Object
from k8s.release.pod_logs import PodLogs, pods_of
from tests.k8s.api import Api
from tests.k8s.log_objects import POOLS, log_pod, log_service
from tests.k8s.objects import NAMESPACE, RAYSERVICES


class Follower:
    """Follows the gateways' pods, and looks for new ones often."""

    def __init__(self, api: Api) -> None:
        self._cluster = Cluster(str(api.kubeconfig))
        self._logs = PodLogs(self._cluster, lambda pod: lambda text: text != "unwanted", look_s=0.1)
        self._lines = self._logs.follow(self.pods)

    def pods(self) -> list[Object]:
        return pods_of(self._cluster, log_service(), ["gateway"])

    def read(self) -> list[str]:
        return [line.text for line in self._logs.read(self.pods(), tail=None)]

    def next(self) -> str:
        line = next(self._lines)
        return f"{line.pod}: {line.text}"


@pytest.fixture
def api() -> Iterator[Api]:
    with Api(RAYSERVICES, log_service(), log_pod("a", "gateway")) as api:
        yield api


@pytest.fixture
def follower(api: Api) -> Follower:
    return Follower(api)


def test_lines_that_were_read_before_are_not_followed_again(api: Api, follower: Follower) -> None:
    api.write_log("a", NAMESPACE, "one")
    api.write_log("a", NAMESPACE, "two")
    assert follower.read() == ["one", "two"]
    api.write_log("a", NAMESPACE, "three")
    assert follower.next() == "a: three"


def test_a_pod_that_starts_later_is_followed_from_its_first_line(
    api: Api, follower: Follower
) -> None:
    api.write_log("a", NAMESPACE, "one")
    assert follower.next() == "a: one"
    api.add(log_pod("b", "gateway"))
    api.write_log("b", NAMESPACE, "first")
    assert follower.next() == "b: first"


def test_a_log_whose_connection_ended_continues_after_its_last_line(
    api: Api, follower: Follower
) -> None:
    api.write_log("a", NAMESPACE, "one")
    assert follower.next() == "a: one"
    api.remove("Pod", "a", NAMESPACE)  # which ends the response
    api.write_log("a", NAMESPACE, "two")
    api.add(log_pod("a", "gateway"))
    assert follower.next() == "a: two"


def test_unwanted_lines_are_left_out(api: Api, follower: Follower) -> None:
    api.write_log("a", NAMESPACE, "unwanted")
    api.write_log("a", NAMESPACE, "one")
    assert follower.read() == ["one"]


def test_with_a_pool_only_its_engines_are_read(api: Api) -> None:
    api.add(*(log_pod(f"{pool}-0", "engine", pool) for pool in POOLS))
    cluster = Cluster(str(api.kubeconfig))
    found = pods_of(cluster, log_service(), ["gateway", "engine"], "small")
    assert sorted(pod["metadata"]["name"] for pod in found) == ["a", "small-0"]
