"""What a person reads about values that are wrong, by the real Helm."""

from typing import Any

import pytest

from tests.helm.helm import HelmError, template

FLEET: dict[str, Any] = {"name": "small", "pools": {"engine": {"model": "embedded"}}}


def fleet_with(**sections: Any) -> dict[str, Any]:
    return {"fleet": {**FLEET, **sections}}


def pool_with(**keys: Any) -> dict[str, Any]:
    return fleet_with(pools={"engine": {"model": "embedded", **keys}})


# What stands in the values, where it is wrong, and in which words Helm says it.
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a mistyped section": ({"gatway": {}}, "", "additional properties 'gatway' not allowed"),
    "a mistyped key": (
        {"upgrade": {"stratgy": "None"}},
        "/upgrade",
        "additional properties 'stratgy' not allowed",
    ),
    "a mistyped switch": (
        {"podDisruptionBudget": {"enable": False}},
        "/podDisruptionBudget",
        "additional properties 'enable' not allowed",
    ),
    "a word that is none of three": (
        {"service": {"type": "Loadbalancer"}},
        "/service/type",
        "value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'",
    ),
    "a pull policy in lower case": (
        {"image": {"pullPolicy": "always"}},
        "/image/pullPolicy",
        "value must be one of 'IfNotPresent', 'Always', 'Never'",
    ),
    "text for a switch": (
        {"networkPolicy": {"enabled": "false"}},
        "/networkPolicy/enabled",
        "got string, want boolean",
    ),
    "text for a port": ({"service": {"port": "80"}}, "/service/port", "got string, want integer"),
    "a port out of range": (
        {"service": {"port": 80000}},
        "/service/port",
        "maximum: got 80,000, want 65,535",
    ),
    "seconds below none": (
        {"upgrade": {"deletionDelaySeconds": -1}},
        "/upgrade/deletionDelaySeconds",
        "minimum: got -1, want 0",
    ),
    "a number for a tag": (
        {"image": {"gpu": {"tag": 1.0}}},
        "/image/gpu/tag",
        "got number, want string",
    ),
    "a tag in the repository": (
        {"image": {"cpu": {"repository": "antefix/cpu:1.0"}}},
        "/image/cpu/repository",
        "'antefix/cpu:1.0' does not match pattern",
    ),
    "a digest that is cut off": (
        {"image": {"gpu": {"digest": "sha256:abc"}}},
        "/image/gpu/digest",
        "'sha256:abc' does not match pattern",
    ),
    "a pull secret by its name alone": (
        {"imagePullSecrets": ["registry"]},
        "/imagePullSecrets/0",
        "got string, want object",
    ),
    "an image in one string": (
        {"warmNodes": {"image": "registry.k8s.io/pause:3.10"}},
        "/warmNodes/image",
        "got string, want object",
    ),
    "a scrape interval without a unit": (
        {"metrics": {"podMonitor": {"interval": "15"}}},
        "/metrics/podMonitor/interval",
        "'15' does not match pattern",
    ),
    "a handler of a probe": (
        {"gatewayPods": {"readinessProbe": {"httpGet": {"path": "/"}}}},
        "/gatewayPods/readinessProbe",
        "additional properties 'httpGet' not allowed",
    ),
    "a quantity with an unknown unit": (
        {"gatewayPods": {"resources": {"limits": {"memory": "4GB"}}}},
        "/gatewayPods/resources/limits/memory",
        "'4GB' does not match pattern",
    ),
    "resources without requests or limits": (
        {"enginePods": {"resources": {"memory": "64Gi"}}},
        "/enginePods/resources",
        "additional properties 'memory' not allowed",
    ),
    "a node selector that is no text": (
        {"enginePods": {"nodeSelector": {"gpu": True}}},
        "/enginePods/nodeSelector/gpu",
        "got boolean, want string",
    ),
    "tolerations in a mapping": (
        {"enginePods": {"tolerations": {"key": "nvidia.com/gpu"}}},
        "/enginePods/tolerations",
        "got object, want array",
    ),
    "a mistyped key of a toleration": (
        {"enginePods": {"tolerations": [{"key": "gpu", "operater": "Exists"}]}},
        "/enginePods/tolerations/0",
        "additional properties 'operater' not allowed",
    ),
    "an affinity of no pod": (
        {"rayHead": {"affinity": {"podAntiaffinity": {}}}},
        "/rayHead/affinity",
        "additional properties 'podAntiaffinity' not allowed",
    ),
    "a Secret by a name that none can have": (
        {"auth": {"existingSecret": "My_Secret"}},
        "/auth/existingSecret",
        "'My_Secret' does not match pattern",
    ),
    "a tenant and its key": (
        {"auth": {"tenants": ["default=sk-1"]}},
        "/auth/tenants/0",
        "'default=sk-1' does not match pattern",
    ),
    "storage of a kind there is not": (
        {"models": {"storage": "s3"}},
        "/models/storage",
        "value must be one of 'none', 'pvc', 'hostPath'",
    ),
    "a path that is not from the root": (
        {"models": {"hostPath": {"path": "models"}}},
        "/models/hostPath/path",
        "'models' does not match pattern '^/'",
    ),
    "an access mode by its short name": (
        {"models": {"pvc": {"accessModes": ["RWX"]}}},
        "/models/pvc/accessModes/0",
        "value must be one of 'ReadWriteOnce', 'ReadOnlyMany', 'ReadWriteMany'",
    ),
    "a password in the values": (
        {"redis": {"password": "hunter2"}},
        "/redis",
        "additional properties 'password' not allowed",
    ),
    "Redis by its host alone": (
        {"redis": {"external": {"url": "redis.example:6379"}}},
        "/redis/external/url",
        "'redis.example:6379' does not match pattern",
    ),
    "a host with a path": (
        {"ingress": {"hosts": ["llm.example.com/v1"]}},
        "/ingress/hosts/0",
        "'llm.example.com/v1' does not match pattern",
    ),
    "a Gateway without a name": (
        {"httpRoute": {"parentRefs": [{"namespace": "edge"}]}},
        "/httpRoute/parentRefs/0",
        "missing property 'name'",
    ),
    "a client by its labels alone": (
        {"networkPolicy": {"allowedClients": [{"app": "chat"}]}},
        "/networkPolicy/allowedClients/0",
        "additional properties 'app' not allowed",
    ),
    "placeholders above real pods": (
        {"warmNodes": {"priority": 100}},
        "/warmNodes/priority",
        "exclusiveMaximum: got 100, want 0",
    ),
    "root": (
        {"podSecurityContext": {"runAsUser": 0}},
        "/podSecurityContext/runAsUser",
        "minimum: got 0, want 1",
    ),
    "a name that is too long": (
        {"fullnameOverride": "a" * 41},
        "/fullnameOverride",
        "maxLength: got 41, want 40",
    ),
    "a pool's resource of GPUs": (
        {"poolPods": {"engine": {"gpuResource": "amd.com/gpu"}}},
        "/poolPods/engine",
        "additional properties 'gpuResource' not allowed",
    ),
    "a fleet without a name": (
        {"fleet": {"pools": FLEET["pools"]}},
        "/fleet",
        "properties 'name' required, if 'pools' exists",
    ),
    "a pool with an invalid name": (
        fleet_with(pools={"Big_Pool": {"model": "embedded"}}),
        "/fleet/pools",
        "additional properties 'Big_Pool' not allowed",
    ),
    "a pool without a model": (
        fleet_with(pools={"engine": {"replicas": 2}}),
        "/fleet/pools/engine",
        "missing property 'model'",
    ),
    "a mistyped key of a pool": (
        pool_with(replica=2),
        "/fleet/pools/engine",
        "additional properties 'replica' not allowed",
    ),
    "half a replica": (
        pool_with(replicas=1.5),
        "/fleet/pools/engine/replicas",
        "got number, want null or integer",
    ),
    "an SLO of no time": (
        pool_with(slo={"interactive": {"ttft_s": 0}}),
        "/fleet/pools/engine/slo/interactive/ttft_s",
        "exclusiveMinimum: got 0, want 0",
    ),
    "a number in env": (
        pool_with(env={"VLLM_CPU_KVCACHE_SPACE": 1}),
        "/fleet/pools/engine/env/VLLM_CPU_KVCACHE_SPACE",
        "got number, want string",
    ),
    "a variable that is Antefix's own": (
        pool_with(env={"CUDA_VISIBLE_DEVICES": "0"}),
        "/fleet/pools/engine/env/CUDA_VISIBLE_DEVICES",
        "value must be 'Ray chooses the GPUs of a replica. Set resources in the pool.'",
    ),
    "an engine argument that is Antefix's own": (
        pool_with(engine_args={"api-key": "sk-1"}),
        "/fleet/pools/engine/engine_args/api-key",
        "value must be 'The gateway holds the API keys. Leave it out.'",
    ),
    "an engine argument with dashes": (
        pool_with(engine_args={"--max-model-len": 2048}),
        "/fleet/pools/engine/engine_args/--max-model-len",
        "value must be 'Write it without dashes'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_refused_with_its_place_and_what_is_wrong(case: str) -> None:
    wrong, place, words = WRONG[case]
    with pytest.raises(HelmError) as caught:
        template({"fleet": FLEET, **wrong})
    assert f"- at '{place}': {words}" in str(caught.value)
    assert str(caught.value).count("- at ") == 1


def test_all_wrong_values_are_reported_at_once() -> None:
    with pytest.raises(HelmError) as caught:
        template({"fleet": FLEET, "servce": {}, "tracing": {"otlpEndpoint": 4317}})
    assert "additional properties 'servce' not allowed" in str(caught.value)
    assert "at '/tracing/otlpEndpoint': got number, want string" in str(caught.value)
