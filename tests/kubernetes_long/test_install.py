"""From an empty namespace to the first answers, and back to an empty one."""

from __future__ import annotations

import json

import pytest

from tests.helm.helm import HelmError
from tests.kubernetes.api import until
from tests.kubernetes_long.kubectl import get, kubectl, objects
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.release import Release
from tests.kubernetes_long.shapes import ONE_OF_EACH

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]


def test_a_release_installs_into_a_restricted_namespace_and_its_own_test_passes(
    release: Release,
) -> None:
    """Install into a namespace with the restricted Pod Security Standard, and `helm test`."""
    release.remove()
    measured("ready after", release.settle(ONE_OF_EACH), "s")
    release.helm("test", "--timeout", "20m")
    report = json.loads(release.status("-o", "json")[1])
    assert report["endpoints"] == 1
    assert kubectl("get", "namespace", release.namespace, "-o", "yaml").count("enforce: restricted")


def test_helm_test_fails_when_the_service_has_no_endpoints(release: Release) -> None:
    """`helm test` of a release whose Service has no endpoints."""
    release.settle(ONE_OF_EACH)
    service = f"service/{release.name}"
    where = ("--namespace", release.namespace)
    kept = json.loads(kubectl("get", service, *where, "-o", "json"))["spec"]["selector"]
    patch = {"spec": {"selector": {**dict.fromkeys(kept), "app": "nobody"}}}
    kubectl("patch", service, *where, "--type", "merge", "--patch", json.dumps(patch))
    try:
        with pytest.raises(HelmError):
            release.helm("test", "--timeout", "60s")
    finally:
        patch = {"spec": {"selector": {**kept, "app": None}}}
        kubectl("patch", service, *where, "--type", "merge", "--patch", json.dumps(patch))
        kubectl("delete", "pod", f"{release.name}-conversation", *where, "--ignore-not-found")


def test_an_idle_release_is_removed_at_once_and_installed_again(
    release: Release,
) -> None:
    """Uninstall and reinstall of an idle release."""
    release.settle(ONE_OF_EACH)
    keys = release.secrets()
    measured("gone after", release.uninstall(), "s", 30)
    until("no RayCluster left", lambda: not objects("rayclusters", release.namespace))
    assert not release.secrets()
    release.settle(ONE_OF_EACH)
    with release.traffic() as traffic:
        traffic.flow()
    assert not traffic.failed()
    assert release.secrets() != keys
    assert get("service", release.name, release.namespace)
