"""What KubeRay makes of a RayService: the schema of its CRD, and its own rules.

A field that the schema does not know is an error here. The API server drops such a field without a
word, so a misspelt one would have no effect.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml

from benchmarks.harness.results.public_data import RAY_SERVICE_CRD
from tests.helm.helm import Object
from tests.missing import data

# of ray-operator/controllers/ray/utils/{constant,validation}.go, v1.7.0
LONGEST_NAME = 47
OF_KUBERAY = {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2"}
UPGRADES = {"None", "NewCluster", "NewClusterWithIncrementalUpgrade"}


def faults_of(ray_service: Object) -> list[str]:
    """Everything that the API server or KubeRay would refuse or drop, empty for a good one."""
    errors = _schema().iter_errors(ray_service)
    # the rules are about objects of the right form
    return [f"{e.json_path}: {e.message}" for e in errors] or list(_rules(ray_service))


@functools.cache
def _schema() -> jsonschema.Draft202012Validator:
    definition = yaml.load(data(RAY_SERVICE_CRD).read_text(), Loader=yaml.CSafeLoader)
    (version,) = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    # the API server knows what is in there, and the CRD does not say
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


def _closed(node: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI v3 schema of Kubernetes as JSON Schema in which unknown fields are errors."""
    closed = dict(node)
    if "properties" in node:
        closed["properties"] = {name: _closed(of) for name, of in node["properties"].items()}
    if isinstance(node.get("additionalProperties"), dict):
        closed["additionalProperties"] = _closed(node["additionalProperties"])
    elif node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    if "items" in node:
        closed["items"] = _closed(node["items"])
    if node.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    if node.get("nullable"):
        closed["type"] = [node["type"], "null"]
    return closed


def _rules(ray_service: Object) -> Iterator[str]:
    name, spec = ray_service["metadata"]["name"], ray_service["spec"]
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield f"the name {name} is too long or no DNS label"
    if (strategy := spec.get("upgradeStrategy", {}).get("type", "None")) not in UPGRADES:
        yield f"there is no upgrade strategy {strategy}"
    if spec.get("rayClusterDeletionDelaySeconds", 0) < 0:
        yield "rayClusterDeletionDelaySeconds is negative"
    cluster = spec["rayClusterConfig"]
    if "upgradeStrategy" in cluster:
        yield "the upgrade strategy is the RayService's, not its cluster's"
    yield from _rules_of_head(cluster["headGroupSpec"])
    names = [group["groupName"] for group in cluster["workerGroupSpecs"]]
    if len(set(names)) < len(names) or "headgroup" in names:
        yield f"worker groups have different names, not {names}"
    for group in cluster["workerGroupSpecs"]:
        yield from _rules_of_workers(group)
    if cluster.get("enableInTreeAutoscaling"):
        yield from _rules_of_the_autoscaler(cluster)


def _rules_of_head(head: Object) -> Iterator[str]:
    container = head["template"]["spec"]["containers"][0]
    for taken in {variable["name"] for variable in container.get("env", [])} & OF_KUBERAY:
        yield f"{taken} in the head's environment is KubeRay's"
    for parameter in {"redis-password", "redis-username", "labels"} & head["rayStartParams"].keys():
        yield f"{parameter} of the head is KubeRay's"
    if head.get("headService", {}).get("metadata", {}).get("name"):
        yield "the head's Service has no name of Antefix"


def _rules_of_workers(group: Object) -> Iterator[str]:
    name = group["groupName"]
    if not 0 <= group["minReplicas"] <= group["maxReplicas"]:
        yield f"{name}: not 0 <= minReplicas <= maxReplicas"
    if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(
        group["rayStartParams"]
    ):
        yield f"{name}: resources in both rayStartParams and resources"
    if "labels" in group["rayStartParams"]:
        yield f"{name}: labels in rayStartParams"
    if group.get("suspend"):
        yield f"{name}: suspended"


def _rules_of_the_autoscaler(cluster: Object) -> Iterator[str]:
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        if group["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield "with the autoscaler, pods have the restart policy Never"
    if cluster.get("autoscalerOptions", {}).get("idleTimeoutSeconds", 0) < 0:
        yield "idleTimeoutSeconds is negative"
