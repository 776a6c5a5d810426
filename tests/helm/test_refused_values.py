"""Values of the right form that could not work: Helm refuses them, with what to write instead."""

import pytest

from tests.helm.helm import HelmError, Object, render

ONE_POOL = {"chat": {"model": "Qwen/Qwen2.5-7B-Instruct"}}
WITH_POOL = {"name": "x", "pools": ONE_POOL}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, ["fleet is empty", "fleet.pools", "--values"]),
        (
            {"fleet": {**WITH_POOL, "gateway": {"host": "127.0.0.1"}}},
            ["fleet.gateway.host is 127.0.0.1", "leave it out", "set ipFamily to IPv6"],
        ),
        (
            {"fleet": {**WITH_POOL, "metrics": {"host": "::1"}}},
            ["fleet.metrics.host is ::1"],
        ),
        (
            {"fleet": {**WITH_POOL, "gateway": {"replicas_per_node": 2}}},
            ["replicas_per_node is 2", "fleet.gateway.replicas"],
        ),
        (
            {"fleet": {**WITH_POOL, "gateway": {"port": 8265}, "metrics": {"port": 10001}}},
            ["fleet.gateway.port is 8265", "fleet.metrics.port is 10001"],
        ),
        ({"fleet": {**WITH_POOL, "gateway": {"port": 80}}}, ["service.port"]),
        (
            {"fleet": {**WITH_POOL, "surge_percent": 20}, "rayAutoscaler": {"enabled": False}},
            ["fleet.surge_percent is 20", "rayAutoscaler.enabled"],
        ),
        (
            {"fleet": {**WITH_POOL, "redis": {"url": "redis://x:6379"}}},
            ["fleet.redis.url is set", "redis.external"],
        ),
        (
            {"fleet": {"name": "x", "pools": {"gateway": ONE_POOL["chat"]}}},
            ["fleet.pools.gateway", "rename the pool"],
        ),
        (
            {"fleet": {"name": "x", "pools": {"a": {**ONE_POOL["chat"], "slo": "my.yaml"}}}},
            ["fleet.pools.a.slo is my.yaml"],
        ),
        (
            {
                "fleet": {
                    "name": "x",
                    "pools": {
                        "a": {
                            **ONE_POOL["chat"],
                            "env": {"HF_TOKEN": "${HF_TOKEN}", "PLAIN": "$${x}"},
                        }
                    },
                }
            },
            ["fleet.pools.a.env.HF_TOKEN is ${HF_TOKEN}", "models.hub.existingSecret"],
        ),
        (
            {"fleet": WITH_POOL, "poolPods": {"chta": {"runtimeClassName": "nvidia"}}},
            ["poolPods.chta", "Its pools are: chat"],
        ),
        (
            {
                "fleet": WITH_POOL,
                "commonLabels": {"app.kubernetes.io/instance": "other"},
                "podLabels": {"antefix/component": "head", "app.kubernetes.io/part-of": "llm"},
            },
            ["commonLabels has app.kubernetes.io/instance", "podLabels has antefix/component"],
        ),
        (
            {"fleet": WITH_POOL, "auth": {"generate": False}},
            [
                "auth.existingSecret is empty: create a Secret with the keys api-keys and",
                "redis.existingSecret is empty: create a Secret with the key password",
            ],
        ),
        (
            {"fleet": WITH_POOL, "image": {"registry": ""}},
            [
                "image.cpu.repository is antefix-cpu, which no public registry has: build it with "
                "make image-cpu",
                "image.gpu.repository is antefix-gpu",
                "set image.registry",
            ],
        ),
        (
            {"fleet": WITH_POOL, "redis": {"image": {"repository": "docker.io/library/redis"}}},
            [
                "redis.image.repository is docker.io/library/redis, which starts with a registry, "
                "and redis.image.registry names one too: write the registry only "
                "in redis.image.registry"
            ],
        ),
        (
            {"fleet": WITH_POOL, "metrics": {"podMonitor": {"enabled": True}}},
            [
                "metrics.prometheusNamespace is empty",
                'set it to the namespace of your Prometheus, or to "*"',
            ],
        ),
        (
            {"fleet": WITH_POOL, "redis": {"enabled": False}},
            ["redis.enabled is false", "redis.external.existingSecret"],
        ),
        (
            {"fleet": WITH_POOL, "redis": {"external": {"url": "redis://x:6379"}}},
            ["redis.external is set, but redis.enabled is true"],
        ),
        (
            {"fleet": WITH_POOL, "gcsFaultTolerance": {"enabled": True}},
            ["gcsFaultTolerance.enabled is true", "redis.persistence.enabled"],
        ),
        (
            {
                "fleet": WITH_POOL,
                "gcsFaultTolerance": {"enabled": True},
                "redis": {"enabled": False, "external": {"existingSecret": "x"}},
            },
            ["Set redis.external.url to redis://host:6379/0"],
        ),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_remedy(
    values: Object, said: list[str]
) -> None:
    with pytest.raises(HelmError) as refused:
        render(values)
    assert all(words in str(refused.value) for words in said)
    assert "PLAIN" not in str(refused.value)


def test_all_invalid_values_are_reported_at_once() -> None:
    with pytest.raises(HelmError) as refused:
        render({"redis": {"enabled": False}, "poolPods": {"chat": {}}})
    for words in ("fleet is empty", "redis.enabled is false", "poolPods.chat"):
        assert words in str(refused.value)
