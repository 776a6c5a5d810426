"""The played API refuses what a real one does, or tests against it would prove nothing."""

from __future__ import annotations

from collections.abc import Iterator

import kubernetes_validate
import pytest
from kubernetes import client

from tests.k8s.api import Api
from tests.k8s.objects import RAYSERVICES, deployment, named, pod

LABELS = {"app": "x"}


@pytest.fixture
def api() -> Iterator[Api]:
    with Api(deployment("x", "llm", LABELS), pod("p", "n1", namespace="llm", labels=LABELS)) as api:
        yield api


def test_an_object_that_no_cluster_would_accept_is_rejected(api: Api) -> None:
    wrong = deployment("y", "llm", LABELS)
    wrong["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        api.add(wrong)
    apps = client.AppsV1Api(api.client())
    with pytest.raises(client.ApiException) as refused:
        apps.patch_namespaced_deployment("x", "llm", {"spec": {"replicas": "many"}})
    assert refused.value.status == 422


def test_a_field_that_is_not_in_the_crd_is_refused(api: Api) -> None:
    api.add(RAYSERVICES)
    with pytest.raises(ValueError, match="'serveConfig' was unexpected"):
        api.add(named("ray.io/v1", "RayService", "r", "llm", spec={"serveConfig": ""}))


def test_an_update_of_an_older_version_conflicts(api: Api) -> None:
    apps = client.AppsV1Api(api.client())
    read = apps.read_namespaced_deployment("x", "llm")
    apps.patch_namespaced_deployment_scale("x", "llm", {"spec": {"replicas": 3}})
    with pytest.raises(client.ApiException) as refused:
        apps.replace_namespaced_deployment("x", "llm", read)
    assert refused.value.status == 409
    assert api.get("Deployment", "x", "llm")["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    "selector, found",
    [
        ("app=x", 1),
        ("app!=x", 0),
        ("app in (w, x),app", 1),
        ("app notin (x)", 0),
        ("!app", 0),
        ("tier", 0),
    ],
)
def test_label_selectors_select(api: Api, selector: str, found: int) -> None:
    core = client.CoreV1Api(api.client())
    assert len(core.list_namespaced_pod("llm", label_selector=selector).items) == found


def test_an_unsupported_field_selector_is_rejected(api: Api) -> None:
    core = client.CoreV1Api(api.client())
    assert core.list_pod_for_all_namespaces(field_selector="spec.nodeName=n1").items
    with pytest.raises(client.ApiException) as refused:
        core.list_pod_for_all_namespaces(field_selector="spec.priority=1")
    assert refused.value.status == 400


def test_forbidden_and_missing_objects_have_their_status(api: Api) -> None:
    core = client.CoreV1Api(api.client())
    api.forbid("get", "secrets")
    with pytest.raises(client.ApiException) as forbidden:
        core.read_namespaced_secret("s", "llm")
    with pytest.raises(client.ApiException) as missing:
        core.read_namespaced_pod("q", "llm")
    assert (forbidden.value.status, missing.value.status) == (403, 404)
