"""The picture of a release, from the chart's own objects with the state that KubeRay gives them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from common.errors import Problem
from k8s.client.cluster import Cluster
from k8s.release.release import release_of, seen
from k8s.release.status import Report, report
from tests.helm.helm import NAMESPACE, RELEASE
from tests.k8s.api import Api
from tests.k8s.objects import Object, named, pod
from tests.k8s.release_objects import (
    ACTIVE,
    LABELS,
    cluster_of,
    condition,
    endpoints,
    ray_pod,
    release,
)

PENDING = "afx-antefix-b"


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return release()


@pytest.fixture
def api(objects: list[Object]) -> Iterator[Api]:
    with Api(*copy.deepcopy(objects)) as api:
        yield api


def status_report(api: Api, release: str = "") -> Report:
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


def test_a_release_whose_parts_are_all_ready_is_ready(api: Api) -> None:
    picture = status_report(api)
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


def test_the_wanted_replicas_are_those_of_the_autoscaler(api: Api) -> None:
    cluster = api.get("RayCluster", ACTIVE, NAMESPACE)
    workers = {of["groupName"]: of for of in cluster["spec"]["workerGroupSpecs"]}
    workers["llama"]["replicas"] = 2
    api.add(cluster)
    picture = status_report(api)
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
        "main runs, but is not ready yet",
        id="starting",
    ),
    pytest.param(
        {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "models", "running": {}}],
            "containerStatuses": [{"waiting": {"reason": "PodInitializing"}}],
        },
        "init container models is still running",
        id="initializing",
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
def test_a_pod_that_is_not_ready_shows_the_reason(api: Api, status: Object, why: str) -> None:
    spelled: Object = {
        of: [container(**one) for one in status[of]]
        for of in ("initContainerStatuses", "containerStatuses")
        if of in status
    }
    status = {**status, **spelled}
    api.add(ray_pod("llama-0", ACTIVE, "llama", status=status))
    picture = status_report(api)
    assert not picture.is_ready
    (waiting,) = [pod for group in picture.groups for pod in group.waiting]
    assert (waiting.pod, waiting.why) == ("llama-0", why)


def container(last: Object | None = None, name: str = "main", **state: Object) -> Object:
    base = {"name": name, "image": "x", "imageID": "x", "ready": False}
    before = {"terminated": last} if last else {}
    return {**base, "restartCount": int(bool(last)), "state": state, "lastState": before}


def test_a_pod_that_is_not_ready_shows_the_last_lines_of_its_container(api: Api) -> None:
    log = "".join(f"line {i}\n  ~~^^\n" for i in range(9)) + "ValueError: no such model\n\n"
    last = {"reason": "Error", "exitCode": 1, "message": log}
    status = {"phase": "Running", "containerStatuses": [container(last, running={})]}
    api.add(ray_pod("llama-0", ACTIVE, "llama", status=status))
    (waiting,) = [pod for group in status_report(api).groups for pod in group.waiting]
    assert waiting.why == "main runs, but is not ready yet, restarted once; before, Error (1)"
    assert waiting.said == [*(f"line {i}" for i in range(5, 9)), "ValueError: no such model"]


def test_an_ended_autoscaler_is_reported_with_what_it_blocks(api: Api) -> None:
    ended = container(name="autoscaler", terminated={"reason": "OOMKilled", "exitCode": 137})
    runs = {**container(name="ray-head", running={}), "ready": True}
    status = {"phase": "Running", "containerStatuses": [runs, ended]}
    api.add(ray_pod("head", ACTIVE, "headgroup", status=status))
    cluster = api.get("RayCluster", ACTIVE, NAMESPACE)
    message = "containers with unready status: [autoscaler]"
    not_ready = condition("HeadPodReady", "False", "ContainersNotReady", message)
    api.add({**cluster, "status": {"conditions": [not_ready]}})
    picture = status_report(api)
    assert not picture.is_ready
    (waiting,) = [pod for group in picture.groups for pod in group.waiting]
    assert waiting.why.startswith("autoscaler: ended with OOMKilled (137) and is not restarted")
    assert picture.conditions[-1] == (
        f"HeadPodReady False (ContainersNotReady): {message}; until it is ready, KubeRay "
        f"applies no change of the fleet to {ACTIVE}"
    )


def deleted(name: str, message: str, last: str) -> Object:
    """As KubeRay 1.6 reports a pod that it deletes."""
    told = event(name, ACTIVE, message, last, "Normal")
    told["involvedObject"]["kind"] = "RayCluster"
    return {**told, "reason": "DeletedWorkerPod"}


GO = (
    "&ContainerStateTerminated{ExitCode:%d,Signal:0,Reason:%s,Message:%s,StartedAt:2026-01-01 "
    "00:00:00 +0000 UTC,FinishedAt:2026-01-01 00:00:01 +0000 UTC,ContainerID:containerd://0,}"
)
ENDED = "; Pod status: Running; Pod restart policy: Never; Ray container terminated status: "


def test_pods_that_kuberay_deleted_are_reported_with_their_last_output(api: Api) -> None:
    failed = GO % (1, "Error", "loading, slowly\nValueError: no room for weights, they said\n")
    killed = GO % (137, "OOMKilled", "")
    cut = f"{GO % (1, 'Error', 'the beginning')}".partition(",StartedAt")[0]
    api.add(
        deleted("e1", f"Deleted worker Pod llm/llama-1{ENDED}{failed}", "2026-01-01T00:00:01Z"),
        deleted(
            "e2",
            "Deleted worker Pod llm/llama-2 for group llama: The Pod status of the worker Pod "
            f"llama-2 is Running, and the Ray container terminated status is {killed}.",
            "2026-01-01T00:00:02Z",
        ),
        deleted("e3", f"Deleted worker Pod llm/llama-3{ENDED}{cut}", "2026-01-01T00:00:03Z"),
        # one that Ray's autoscaler did not want, and one that ended as it should
        deleted("e4", "Deleted pod llm/llama-4", "2026-01-01T00:00:04Z"),
        deleted("e5", f"Deleted worker Pod llm/x{ENDED}{GO % (0, 'Completed', '')}", "2026-02-02"),
    )
    ended = status_report(api).ended
    assert [(pod.pod, pod.why, pod.said) for pod in ended] == [
        (
            "llama-1",
            "ended with Error (1)",
            ["loading, slowly", "ValueError: no room for weights, they said"],
        ),
        ("llama-2", "ended with OOMKilled (137)", []),
        ("llama-3", "ended with Error (1)", ["the beginning"]),
    ]
    assert ended[0].when == "2026-01-01T00:00:01Z"


def test_a_pod_that_was_evicted_and_deleted_is_reported(api: Api) -> None:
    message = (
        "Deleted worker Pod llm/llama-1 for group llama: The worker Pod llama-1 status is Failed "
        "which is a terminal state. KubeRay will delete the Pod and create new Pods."
    )
    api.add(deleted("e1", message, "2026-01-01T00:00:01Z"))
    assert [(pod.pod, pod.why) for pod in status_report(api).ended] == [("llama-1", "failed")]


def test_a_deployment_that_does_not_start_shows_the_engines_error(api: Api) -> None:
    service = api.get("RayService", "afx-antefix", NAMESPACE)
    traceback = (
        "The deployment failed to start 2 times in a row. This may be due to a problem with its "
        "constructor. Error:\nTraceback (most recent call last):\n  File replica.py, line 1\n"
        "deployments.engine.start.start_failures.EngineFailed: ValueError: "
        "Available memory on node 0 "
        "(0.97/3.0 GiB) on kv cache allocation is less than requested memory for kv (1.0 GiB).\n"
    )
    llama = {"status": "UPDATING", "message": traceback}
    service["status"]["activeServiceStatus"]["applicationStatuses"]["antefix"] = {
        "status": "DEPLOYING",
        "serveDeploymentStatuses": {"gateway": {"status": "HEALTHY"}, "llama": llama},
    }
    api.add(service)
    assert status_report(api).applications == [
        "antefix DEPLOYING",
        "antefix: llama UPDATING: ValueError: Available memory on node 0 (0.97/3.0 GiB) on kv "
        "cache allocation is less than requested memory for kv (1.0 GiB).",
    ]


def job(status: Object) -> Object:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x"}]}}
    made = named("batch/v1", "Job", "models", NAMESPACE, labels=LABELS, spec={"template": template})
    return {**made, "status": status}


def test_a_failed_job_is_reported(api: Api) -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "BackoffLimitExceeded",
        "message": "Job has reached the specified backoff limit",
    }
    api.add(job({"failed": 11, "conditions": [failed]}))
    (told,) = status_report(api).jobs
    words = "BackoffLimitExceeded: Job has reached the specified backoff limit"
    assert (told.state, told.why) == ("failed", words)


def test_a_retried_job_shows_the_last_lines_of_its_pod(api: Api) -> None:
    last = {"reason": "Error", "exitCode": 1, "message": "401 Client Error: gated repo"}
    spelled = container(last, name="download", waiting={"reason": "CrashLoopBackOff"})
    status = {"phase": "Running", "containerStatuses": [spelled]}
    labels = {"batch.kubernetes.io/job-name": "models", **LABELS}
    api.add(job({"active": 1}), pod("models-x", namespace=NAMESPACE, labels=labels, status=status))
    (told,) = status_report(api).jobs
    assert (told.state, told.said) == ("running", ["401 Client Error: gated repo"])
    assert told.why == "download: CrashLoopBackOff, ended last with Error (1)"


def test_a_completed_job_has_no_message(api: Api) -> None:
    api.add(job({"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}))
    assert [(told.state, told.why) for told in status_report(api).jobs] == [("done", "")]


def test_extra_pods_and_those_of_an_old_cluster_are_reported(api: Api) -> None:
    api.add(ray_pod("llama-1", ACTIVE, "llama"), ray_pod("old", "afx-antefix-0", "llama"))
    picture = status_report(api)
    (llama,) = [group for group in picture.groups if group.name == "llama"]
    assert (llama.wanted, llama.extra) == (1, 1)
    assert picture.leaving == {"afx-antefix-0": 1}


def test_a_pod_that_ends_is_not_ready(api: Api) -> None:
    leaving = ray_pod("llama-0", ACTIVE, "llama")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.add(leaving)
    (waiting,) = [pod for group in status_report(api).groups for pod in group.waiting]
    assert waiting.why == "is ending"


def test_an_upgrade_shows_both_clusters_and_is_ready_while_the_old_one_is(api: Api) -> None:
    service = api.get("RayService", "afx-antefix", NAMESPACE)
    service["status"]["pendingServiceStatus"] = {
        "rayClusterName": PENDING,
        "applicationStatuses": {"antefix": {"status": "DEPLOY_FAILED", "message": "no such model"}},
    }
    api.add(service, cluster_of(service, PENDING), ray_pod("head-b", PENDING, "headgroup"))
    picture = status_report(api)
    assert picture.is_ready
    assert {g.name: (g.ready, g.wanted) for g in picture.coming} == {
        "head": (1, 1),
        "gateway": (0, 1),
        "llama": (0, 1),
    }
    assert picture.applications == ["antefix DEPLOY_FAILED: no such model"]


def test_a_release_without_its_redis_pod_is_not_ready(api: Api) -> None:
    api.remove("Pod", "redis-0", NAMESPACE)
    assert not status_report(api).is_ready


def test_gateways_that_take_no_requests_are_not_counted(api: Api) -> None:
    api.add(endpoints(True, False, True))
    assert status_report(api).endpoints == 2


def test_pods_that_a_service_has_without_the_port_are_no_gateways(api: Api) -> None:
    api.add(endpoints(True, True, True, name="engines", port=""))
    assert status_report(api).endpoints == 1
    api.remove("EndpointSlice", "afx-antefix-x", NAMESPACE)
    picture = status_report(api)
    assert (picture.endpoints, picture.is_ready) == (0, False)


def test_without_access_to_endpoints_status_reports_the_rest(api: Api) -> None:
    api.forbid("list", "endpointslices")
    assert status_report(api).is_ready


def test_a_gateway_with_ipv4_and_ipv6_addresses_counts_once(api: Api) -> None:
    api.add(endpoints(True, name="the-other-family"))
    assert status_report(api).endpoints == 1


def test_only_the_last_warnings_of_the_release_are_shown_without_repetition(api: Api) -> None:
    for i in range(7):
        api.add(event(f"e{i}", f"{ACTIVE}-worker", f"number {i}", f"2026-01-01T00:00:0{i}Z"))
    api.add(
        event("again", f"{ACTIVE}-worker", "number 2", "2026-01-01T00:01:00Z"),
        event("other", "somebody-else", "no", "2026-01-01T00:02:00Z"),
        event("fine", f"{ACTIVE}-worker", "fine", "2026-01-01T00:03:00Z", "Normal"),
    )
    numbers = [line.rpartition(" ")[2] for line in status_report(api).events]
    assert numbers == ["3", "4", "5", "6", "2"]
    assert status_report(api).events[0] == f"Pod {ACTIVE}-worker: Failed: number 3"


def test_nothing_is_ready_before_kuberay_has_created_a_cluster(api: Api) -> None:
    service = api.get("RayService", "afx-antefix", NAMESPACE)
    del service["status"]
    api.add(service)
    picture = status_report(api)
    assert (picture.is_ready, picture.active, picture.groups) == (False, "", [])


def test_a_forbidden_request_is_named(api: Api) -> None:
    api.forbid("list", "events")
    picture = status_report(api)
    assert picture.is_ready
    assert picture.denied == [f"may not list events in namespace {NAMESPACE}"]


def test_a_release_is_found_by_its_name_or_if_it_is_the_only_one(api: Api) -> None:
    cluster = Cluster(str(api.kubeconfig))
    assert release_of(cluster, NAMESPACE, RELEASE) is not None
    assert release_of(cluster, NAMESPACE, "another") is None
    assert release_of(cluster, "default", "") is None
    second = api.get("RayService", "afx-antefix", NAMESPACE)
    second["metadata"]["name"] = "second"
    second["metadata"]["labels"]["app.kubernetes.io/instance"] = "second"
    api.add(second)
    with pytest.raises(Problem, match="several releases: afx, second; pass one of them as RELEASE"):
        release_of(cluster, NAMESPACE, "")
