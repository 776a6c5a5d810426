"""Changes of a release under traffic: in place, by a second cluster, back, by GitOps."""

from __future__ import annotations

from copy import deepcopy

import pytest

from tests.kubernetes_long.kubectl import kubectl, until
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.release import READY_S, Release, Values
from tests.kubernetes_long.shapes import ONE_OF_EACH, two_of_each

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

ANNOTATED: Values = {"podAnnotations": {"example.com/changed": "1"}}


def test_a_change_of_pods_is_made_by_a_second_cluster_and_no_request_fails(
    release: Release,
) -> None:
    release.settle(ONE_OF_EACH)
    first, secrets = release.active(), release.secrets()
    with release.traffic() as traffic:
        release.upgrade(ANNOTATED)
        switched = until("the second cluster serves", lambda: release.active() != first, READY_S)
        measured("change of pods, until the second cluster serves", switched, "s")
        measured("change of pods, until the first has left", release.wait(), "s")
    traffic.tell("upgrade by a second cluster")
    assert not traffic.failed()
    assert release.secrets() == secrets


def test_a_change_of_the_fleet_alone_is_made_in_place_and_no_request_fails(
    release: Release, first_node: str
) -> None:
    release.settle(two_of_each(first_node))
    first, pods, secrets = release.active(), names(release), release.secrets()
    changed = deepcopy(two_of_each(first_node))
    # the engine reads it when it starts
    changed["fleet"]["pools"]["engine"]["engine_args"] = {"max_num_seqs": 16}
    with release.traffic() as traffic:
        release.upgrade(changed)
        until("the change has begun", lambda: not release.is_ready())
        measured("change of the fleet in place, until ready", release.wait(), "s")
    traffic.tell("upgrade in place")
    assert not traffic.failed()
    assert release.active() == first
    assert pods <= names(release)
    assert release.secrets() == secrets


def names(release: Release) -> set[str]:
    return {pod["metadata"]["name"] for pod in release.pods()}


def test_a_rollback_goes_back_to_the_settings_before(release: Release) -> None:
    release.settle(ONE_OF_EACH)
    secrets = release.secrets()
    release.upgrade({"fleet": {"pools": {"engine": {"slo": {"interactive": {"ttft_s": 29}}}}}})
    assert "ttft_s: 29" in release.service()["spec"]["serveConfigV2"]
    release.helm("rollback")
    assert "ttft_s: 29" not in release.service()["spec"]["serveConfigV2"]
    release.wait()
    assert release.secrets() == secrets


def test_what_gitops_applies_twice_is_applied_without_a_conflict(release: Release) -> None:
    release.settle(ONE_OF_EACH)
    values = ONE_OF_EACH  # TODO auth of its own
    for _ in range(2):
        rendered = release.rendered(values)
        kubectl(
            *("apply", "--server-side", "--field-manager", "helm"),
            *("--namespace", release.namespace, "-f", "-"),
            stdin=rendered,
        )
