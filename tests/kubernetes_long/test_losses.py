"""What is lost under traffic, and recovers by itself: pods, Redis, the head, a node."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kubernetes.api import condition, is_ending, name_of, until
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.release import READY_S, Release, Values
from tests.kubernetes_long.shapes import ONE_OF_EACH, fault_tolerant, two_of_each
from tests.kubernetes_long.volumes import volume

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

# In the head's pod, whose containers see each other's processes.
KILL_AUTOSCALER = """
import psutil
for one in psutil.process_iter(["cmdline"]):
    if "kuberay-autoscaler" in (one.info["cmdline"] or []):
        one.kill()
"""
# By then each client, and the Service, has noticed that a process went without a word.
NOTICED_S = 40.0


def kill(release: Release, pod: str) -> float:
    """End the pod as if its machine had lost it: no preStop, no grace. Return the time."""
    now = time.time()
    kubectl(
        *("delete", "pod", pod, "--namespace", release.namespace),
        *("--grace-period", "0", "--force"),
    )
    return now


def test_losing_redis_fails_no_request(release: Release, first_node: str) -> None:
    """Loss of Redis under load."""
    release.settle(two_of_each(first_node))
    with release.traffic() as traffic:
        kill(release, release.pod("redis"))
        traffic.flow(12)
        release.wait()
    traffic.tell()
    assert not traffic.failed()
    # prefix hits are back
    release.helm("test", "--timeout", "20m")


@pytest.mark.parametrize("component", ["gateway", "engine"])
def test_losing_one_of_two_pods_fails_only_its_requests(
    release: Release, first_node: str, component: str
) -> None:
    """Loss of one of two gateways, or of one of two engines, under load."""
    release.settle(two_of_each(first_node))
    with release.traffic() as traffic:
        killed = kill(release, release.pod(component))
        until("its place is empty", lambda: not release.is_ready(), within_s=60)
        measured("two ready after", release.wait(), "s")
    traffic.tell()
    assert not [one for one in traffic.failed() if one.began > killed + NOTICED_S]


def test_deleting_the_pod_of_the_head_replaces_the_head(
    release: Release,
) -> None:
    """Deletion of the head's pod under load."""
    release.settle(ONE_OF_EACH)
    with release.traffic() as traffic:
        lost = release.pod("head")
        went = time.time()
        kubectl("delete", "pod", lost, "--namespace", release.namespace, "--wait=false")
        new = until("a new head serves", lambda: new_head(release, lost), READY_S)
        measured("new head ready after", new, "s", 90)
        release.wait()
        traffic.flow()
    traffic.tell(pause_at_most_s=150)
    assert traffic.outcomes(since=went)


@pytest.fixture(scope="module")
def kept(release: Release, first_node: str) -> Iterator[Values]:
    """What keeps the head's state in Redis, whose disk is there until the last test has ended."""
    release.remove()
    with volume("redis", first_node, release.image):
        yield fault_tolerant(first_node)
        release.remove()


def test_deleting_the_pod_of_a_head_with_its_state_in_redis_fails_no_request(
    release: Release, kept: Values
) -> None:
    """Deletion of the head's pod under load, with `gcsFaultTolerance.enabled`."""
    release.settle(kept)
    before = workers(release)
    with release.traffic() as traffic:
        lost = release.pod("head")
        kubectl("delete", "pod", lost, "--namespace", release.namespace, "--wait=false")
        new = until("a new head serves", lambda: new_head(release, lost), READY_S)
        measured("new head ready after", new, "s", 90)
        traffic.flow(20)
        release.wait()
    traffic.tell()
    assert not traffic.failed()
    assert workers(release) == before


def test_an_autoscaler_that_ended_is_replaced_with_its_head(release: Release, kept: Values) -> None:
    """Crash of Ray's autoscaler under load, and uninstall."""
    release.settle(kept)
    with release.traffic() as traffic:
        lost = release.pod("head")
        kill_autoscaler(release)
        new = until("a new head serves", lambda: new_head(release, lost), READY_S)
        measured("new head ready after", new, "s")
        release.wait()
    traffic.tell()
    assert not traffic.failed()
    measured("gone after", release.uninstall(), "s")


def test_status_shows_an_autoscaler_that_ended(release: Release) -> None:
    """Report of a crashed autoscaler in `antefix k8s status`."""
    release.settle(ONE_OF_EACH)
    kill_autoscaler(release)
    until("status reports it", lambda: "autoscaler: ended" in release.status()[1], within_s=120)
    release.changed()


def workers(release: Release) -> set[str]:
    return {name_of(pod) for c in ("gateway", "engine") for pod in release.pods(c)}


def kill_autoscaler(release: Release) -> None:
    where = ("--namespace", release.namespace, "--container", "ray-head")
    kubectl("exec", release.pod("head"), *where, "--", "python", "-c", KILL_AUTOSCALER)


def new_head(release: Release, lost: str) -> bool:
    heads = [p for p in release.pods("head") if name_of(p) != lost and not is_ending(p)]
    return any(condition(head, "Ready") for head in heads)
