"""The picture of a release, from the chart's own objects with the state that KubeRay gives them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from common.errors import Problem
from k8s.cluster import Cluster
from k8s.status import Report, release_of, report, seen
from tests.helm.helm import NAMESPACE, RELEASE
from tests.k8s.api import Api
from tests.k8s.objects import Object, named
from tests.k8s.release import ACTIVE, cluster_of, endpoints, ray_pod, release

PENDING = "afx-antefix-b"


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return release()


@pytest.fixture
def api(objects: list[Object]) -> Iterator[Api]:
    with Api(*copy.deepcopy(objects)) as api:
        yield api


def pictured(api: Api, release: str = "") -> Report:
    cluster = Cluster(str(api.kubeconfig))
    service = release_of(cluster, NAMESPACE, release)
    assert service is not None
    return report(seen(cluster, service))


def event(name: str, about: str, message: str, last: str, kind: str = "Warning") -> Object:
    return named(
        "v1",
        "Event",
        name,
        NAMESPACE,
        type=kind,
        reason="Failed",
        message=message,
        lastTimestamp=last,
        involvedObject={"kind": "Pod", "name": about, "namespace": NAMESPACE},
    )


def test_a_release_of_which_all_is_ready_is_ready(api: Api) -> None:
    picture = pictured(api)
    assert picture.is_ready
    groups = {g.name: (g.ready, g.wanted, g.nodes) for g in [*picture.groups, *picture.beside]}
    assert groups == {
        "head": (1, 1, ["a100-1"]),
        "gateway": (1, 1, ["a100-1"]),
        "llama": (1, 1, ["a100-1"]),
        "redis": (1, 1, ["cpu-1"]),
        "warm-nodes": (1, 1, ["cpu-1"]),
    }
    assert (picture.active, picture.pending, picture.endpoints) == (ACTIVE, "", 1)
    assert picture.placeholders == {"llama": (0, 0)}
    assert picture.conditions == ["Ready True (NonZeroServeEndpoints)"]
    assert picture.applications == []


def test_what_the_autoscaler_asked_for_is_what_is_wanted(api: Api) -> None:
    cluster = api.get("RayCluster", ACTIVE, NAMESPACE)
    workers = {of["groupName"]: of for of in cluster["spec"]["workerGroupSpecs"]}
    workers["llama"]["replicas"] = 2
    api.add(cluster)
    picture = pictured(api)
    assert not picture.is_ready
    (llama,) = [group for group in picture.groups if group.name == "llama"]
    assert (llama.ready, llama.wanted) == (1, 2)


WAITING = [
    pytest.param(
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                }
            ],
        },
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        id="unschedulable",
    ),
    pytest.param(
        {
            "phase": "Pending",
            "containerStatuses": [
                {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}
            ],
        },
        'main: ImagePullBackOff: Back-off pulling image "x"',
        id="no image",
    ),
    pytest.param(
        {
            "phase": "Running",
            "containerStatuses": [
                {
                    "waiting": {"reason": "CrashLoopBackOff"},
                    "last": {"reason": "OOMKilled", "exitCode": 137},
                }
            ],
        },
        "main: CrashLoopBackOff, ended last with OOMKilled (137)",
        id="killed for memory",
    ),
    pytest.param(
        {"phase": "Running", "containerStatuses": [{"running": {}}]},
        "main runs and is not ready yet",
        id="starting",
    ),
    pytest.param(
        {"phase": "Pending", "containerStatuses": [{"waiting": {"reason": "ContainerCreating"}}]},
        "main: ContainerCreating",
        id="being made",
    ),
    pytest.param(
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
        "The node was low on memory.",
        id="evicted",
    ),
]


@pytest.mark.parametrize("status, why", WAITING)
def test_a_pod_that_waits_says_why(api: Api, status: Object, why: str) -> None:
    spelled = [container(**one) for one in status.get("containerStatuses", [])]
    status = {**status, "containerStatuses": spelled} if spelled else status
    api.add(ray_pod("llama-0", ACTIVE, "llama", status=status))
    picture = pictured(api)
    assert not picture.is_ready
    (waiting,) = [pod for group in picture.groups for pod in group.waiting]
    assert (waiting.pod, waiting.why) == ("llama-0", why)


def container(last: Object | None = None, **state: Object) -> Object:
    base = {"name": "main", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    return {**base, "state": state, "lastState": {"terminated": last} if last else {}}


def test_a_pod_that_ends_is_not_ready(api: Api) -> None:
    leaving = ray_pod("llama-0", ACTIVE, "llama")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.add(leaving)
    (waiting,) = [pod for group in pictured(api).groups for pod in group.waiting]
    assert waiting.why == "is ending"


def test_an_upgrade_shows_both_clusters_and_is_ready_while_the_old_one_is(api: Api) -> None:
    service = api.get("RayService", "afx-antefix", NAMESPACE)
    service["status"]["pendingServiceStatus"] = {
        "rayClusterName": PENDING,
        "applicationStatuses": {"antefix": {"status": "DEPLOY_FAILED", "message": "no such model"}},
    }
    api.add(service, cluster_of(service, PENDING), ray_pod("head-b", PENDING, "headgroup"))
    picture = pictured(api)
    assert picture.is_ready
    assert {g.name: (g.ready, g.wanted) for g in picture.coming} == {
        "head": (1, 1),
        "gateway": (0, 1),
        "llama": (0, 1),
    }
    assert picture.applications == ["antefix DEPLOY_FAILED: no such model"]


def test_a_redis_that_is_gone_is_seen(api: Api) -> None:
    api.remove("Pod", "redis-0", NAMESPACE)
    assert not pictured(api).is_ready


def test_gateways_that_take_no_requests_are_not_counted(api: Api) -> None:
    api.add(endpoints(True, False, True))
    assert pictured(api).endpoints == 2


def test_the_last_warnings_are_the_releases_own_and_said_once(api: Api) -> None:
    for i in range(7):
        api.add(event(f"e{i}", f"{ACTIVE}-worker", f"number {i}", f"2026-01-01T00:00:0{i}Z"))
    api.add(
        event("again", f"{ACTIVE}-worker", "number 2", "2026-01-01T00:01:00Z"),
        event("other", "somebody-else", "no", "2026-01-01T00:02:00Z"),
        event("fine", f"{ACTIVE}-worker", "fine", "2026-01-01T00:03:00Z", "Normal"),
    )
    numbers = [line.rpartition(" ")[2] for line in pictured(api).events]
    assert numbers == ["3", "4", "5", "6", "2"]
    assert pictured(api).events[0] == f"Pod {ACTIVE}-worker: Failed: number 3"


def test_before_kuberay_made_a_cluster_nothing_is_ready(api: Api) -> None:
    service = api.get("RayService", "afx-antefix", NAMESPACE)
    del service["status"]
    api.add(service)
    picture = pictured(api)
    assert (picture.is_ready, picture.active, picture.groups) == (False, "", [])


def test_what_may_not_be_asked_is_named(api: Api) -> None:
    api.forbid("list", "events")
    picture = pictured(api)
    assert picture.is_ready
    assert picture.denied == [f"may not list events in namespace {NAMESPACE}"]


def test_a_release_is_found_by_its_name_or_alone(api: Api) -> None:
    cluster = Cluster(str(api.kubeconfig))
    assert release_of(cluster, NAMESPACE, RELEASE) is not None
    assert release_of(cluster, NAMESPACE, "another") is None
    assert release_of(cluster, "default", "") is None
    second = api.get("RayService", "afx-antefix", NAMESPACE)
    second["metadata"]["name"] = "second"
    second["metadata"]["labels"]["app.kubernetes.io/instance"] = "second"
    api.add(second)
    with pytest.raises(Problem, match="several releases: afx, second; name --release"):
        release_of(cluster, NAMESPACE, "")
