"""A RayService as the chart renders it, and the parts that tests ask for."""

import json
from typing import Any

import yaml

from deployments.fleet.applications import fleet_of
from tests.helm.crd import faults_of
from tests.helm.helm import CHART, Object, of_kind, render

CI = CHART / "ci"


def ray_service(values: dict[str, Any] | str) -> Object:
    """Of values, or of a file of ci/."""
    given = CI / f"{values}-values.yaml" if isinstance(values, str) else values
    found = of_kind(render(given, show_only="templates/rayservice.yaml"), "RayService")
    assert faults_of(found) == []
    return found


def of_fleet(pools: dict[str, Any], **values: Any) -> Object:
    fleet = {"name": "x", "pools": pools, **values.pop("fleet", {})}
    return ray_service({"fleet": fleet, **values})


def head(found: Object) -> Object:
    return dict(found["spec"]["rayClusterConfig"]["headGroupSpec"])


def groups(found: Object) -> dict[str, Object]:
    return {g["groupName"]: g for g in found["spec"]["rayClusterConfig"]["workerGroupSpecs"]}


def every_group(found: Object) -> dict[str, Object]:
    return {"head": head(found), **groups(found)}


def pod(group: Object) -> Object:
    return dict(group["template"]["spec"])


def container(group: Object) -> Object:
    (only,) = pod(group)["containers"]
    return dict(only)


def variables(group: Object) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container(group)["env"]}


def pods(group: Object) -> tuple[int, int, int]:
    return group["minReplicas"], group["replicas"], group["maxReplicas"]


def custom(group: Object) -> Any:
    """As Ray's autoscaler reads it (autoscaling_config.py, _get_custom_resources)."""
    text = group["rayStartParams"]["resources"][1:-1].replace("\\", "")
    amounts = json.loads(text)
    assert all(isinstance(amount, int) for amount in amounts.values())
    return amounts


def config(found: Object) -> Any:
    return yaml.safe_load(found["spec"]["serveConfigV2"])


def fleet(found: Object) -> Any:
    return fleet_of(config(found))
