"""The check of RayServices refuses what KubeRay would."""

import copy
from typing import Any

import pytest

from tests.helm.crd import faults_of
from tests.helm.helm import CHART, Object, of_kind, render

HEAD = "spec.rayClusterConfig.headGroupSpec"
GROUP = "spec.rayClusterConfig.workerGroupSpecs.0"


@pytest.fixture(scope="module")
def good() -> Object:
    return of_kind(render(CHART / "ci" / "autoscaled-values.yaml"), "RayService")


def changed(ray_service: Object, path: str, value: Any) -> Object:
    changed = copy.deepcopy(ray_service)
    *above, last = path.split(".")
    at: Any = changed
    for key in above:
        at = at[int(key) if isinstance(at, list) else key]
    at[last] = value
    return changed


def test_a_valid_rayservice_has_no_faults(good: Object) -> None:
    assert faults_of(good) == []


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.serveConfigV3", "x", "'serveConfigV3' was unexpected"),
        ("spec.rayClusterConfig.autoscalerOptions.idleTimeoutS", 1, "'idleTimeoutS'"),
        (f"{HEAD}.template.spec.serviceAccount_name", "x", "'serviceAccount_name'"),
        (f"{HEAD}.template.spec.containers.0.readinessprobe", {}, "'readinessprobe'"),
        (f"{HEAD}.template.metadata.labelz", {}, "'labelz'"),
        (f"{HEAD}.rayStartParams.num-cpus", 0, "0 is not of type 'string'"),
        (f"{GROUP}.replicas", "3", "'3' is not of type 'integer'"),
        (f"{GROUP}.template.spec.containers", {}, "{} is not of type 'array'"),
        ("spec.serveService.spec.ports.0.targetPort", [], "not of type 'integer', 'string'"),
        ("spec.rayClusterConfig.autoscalerOptions.upscalingMode", "Fast", "'Fast' is not one of"),
        (f"{GROUP}.template", None, "None is not of type 'object'"),
    ],
)
def test_a_misspelled_field_and_a_wrong_type_are_rejected(
    good: Object, path: str, value: Any, complaint: str
) -> None:
    assert any(complaint in fault for fault in faults_of(changed(good, path, value)))


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("metadata.name", "1st", "no DNS label"),
        ("metadata.name", "a" * 48, "too long"),
        ("spec.upgradeStrategy.type", "Recreate", "no upgrade strategy Recreate"),
        (f"{GROUP}.minReplicas", 1001, "not 0 <= minReplicas <= maxReplicas"),
        (f"{GROUP}.groupName", "spiky", "different names"),
        (f"{GROUP}.rayStartParams.labels", "a=b", "labels in rayStartParams"),
        (f"{GROUP}.resources", {"CPU": "1"}, "resources in both"),
        (f"{GROUP}.template.spec.restartPolicy", "Always", "restart policy Never"),
        (f"{HEAD}.template.spec.containers.0.env.0.name", "REDIS_PASSWORD", "is KubeRay's"),
        (f"{HEAD}.rayStartParams.redis-password", "x", "redis-password of the head is KubeRay's"),
    ],
)
def test_a_rayservice_that_kuberay_refuses_is_refused(
    good: Object, path: str, value: Any, complaint: str
) -> None:
    assert any(complaint in fault for fault in faults_of(changed(good, path, value)))
