"""What holds for every object of every values file, on several versions of Kubernetes."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.helm.helm import CHART, RELEASE, Object, render, run
from tests.helm.pod_security import containers, violations
from tests.shipped import INSTALLS, combined, values_of
from tests.some import some

VERSIONS = ("1.30.0", "1.32.0", "1.34.0", "1.36.0")
RENDERED: dict[str, Object] = {
    **{file.stem: values_of(file) for file in sorted(CHART.glob("ci/*-values.yaml"))},
    **{name: combined(files) for name, files in INSTALLS.items()},
}
# Custom resources: Kubernetes' own schemas do not know them.
CUSTOM = {"RayService", "PodMonitor", "PrometheusRule", "HTTPRoute"}


@pytest.fixture(scope="module", params=RENDERED)
def values(request: pytest.FixtureRequest) -> Object:
    return RENDERED[request.param]


@pytest.fixture(scope="module")
def rendered(values: Object) -> dict[str, list[Object]]:
    """The objects by the version of Kubernetes."""
    return {version: render(values, kubernetes=version) for version in VERSIONS}


def test_helm_lints_the_chart_without_a_warning(values: Object, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    assert "0 chart(s) failed" in run("lint", "--strict", str(CHART), "--values", str(file))


def test_kubernetes_accepts_every_object(rendered: dict[str, list[Object]]) -> None:
    for version, objects in rendered.items():
        for found in objects:
            if found["kind"] not in CUSTOM:
                kubernetes_validate.validate(found, version, strict=True)


def test_every_object_has_the_charts_labels(rendered: dict[str, list[Object]]) -> None:
    for found in some(rendered[VERSIONS[-1]]):
        labels = found["metadata"]["labels"]
        told = f"{found['kind']} {found['metadata']['name']}"
        assert labels["app.kubernetes.io/instance"] == RELEASE, told
        assert labels["app.kubernetes.io/managed-by"] == "Helm", told
        assert labels["helm.sh/chart"].startswith("antefix-"), told


def test_no_two_objects_have_one_name(rendered: dict[str, list[Object]]) -> None:
    names = Counter((o["kind"], o["metadata"]["name"]) for o in rendered[VERSIONS[-1]])
    assert [name for name, number in names.items() if number > 1] == []


def test_every_pod_keeps_to_the_restricted_standard(
    values: Object, rendered: dict[str, list[Object]]
) -> None:
    # the only storage of the chart that the standard forbids, which values.yaml says
    on_hosts = values.get("models", {}).get("storage") == "hostPath"
    expected = {"volume models: hostPath"} if on_hosts else set()
    for name, pod in some(pods(rendered[VERSIONS[-1]])):
        assert set(violations(pod)) <= expected, name


def test_every_container_has_resource_requests(rendered: dict[str, list[Object]]) -> None:
    for name, pod in some(pods(rendered[VERSIONS[-1]])):
        for container in containers(pod):
            resources = container.get("resources", {})
            assert {"cpu", "memory"} <= set(resources.get("requests", {})), name
            assert "memory" in resources.get("limits", {}), name


def test_only_pods_that_talk_to_kubernetes_have_a_token(
    rendered: dict[str, list[Object]],
) -> None:
    made = dict(some(pods(rendered[VERSIONS[-1]])))
    with_token = {n for n, pod in made.items() if pod.get("automountServiceAccountToken", True)}
    assert with_token == made.keys() & {"RayService head", "Deployment warm-nodes"}


def test_unknown_fields_and_wrong_types_are_found() -> None:
    service: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    wrong: list[dict[str, Any]] = [{"prots": []}, {"ports": [{"port": "x"}]}]
    for spec in some(wrong):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**service, "spec": spec}, VERSIONS[0], strict=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hostNetwork": True},
        {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]},
        {"securityContext": {"runAsNonRoot": True}},
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
        {"containers": [{"name": "a"}]},
        {"initContainers": [{"name": "b", "securityContext": {"privileged": True}}]},
    ],
)
def test_a_pod_that_breaks_the_restricted_standard_is_found(wrong: dict[str, Any]) -> None:
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    right: dict[str, Any] = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "a", "securityContext": restricted}],
    }
    assert violations(right) == []
    assert violations({**right, **wrong}) != []


def pods(objects: list[Object]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The specs of all pods, each with the kind of what makes it and its component."""
    for found in objects:
        for template in _templates(found):
            component = template["metadata"]["labels"]["antefix/component"]
            yield f"{found['kind']} {component}", template["spec"]


def _templates(found: Object) -> list[dict[str, Any]]:
    if found["kind"] == "Pod":
        return [found]
    if found["kind"] == "RayService":
        cluster = found["spec"]["rayClusterConfig"]
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        return [group["template"] for group in groups]
    template = found.get("spec", {}).get("template")
    return [template] if template else []
