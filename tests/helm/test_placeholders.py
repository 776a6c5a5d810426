"""Names of the documentation that a reader has left in place: Helm refuses them, and only them."""

from __future__ import annotations

import pytest

from tests.helm.helm import HelmError, render
from tests.shipped import PLATFORMS, SIZES, VALUES_FILES

POOLS = {"chat": {"model": "s3://<bucket>/qwen", "served_model_name": "chat"}}
LEFT = {
    "fleet": {"name": "x", "pools": POOLS},
    "image": {"registry": "registry.example.com/llm"},
    "ingress": {"enabled": True, "hosts": ["llm.example.com", "llm.acme.internal"]},
    "httpRoute": {
        "enabled": True,
        "parentRefs": [{"name": "public"}],
        "hostnames": ["llm.example.org"],
    },
    "metrics": {"dashboards": {"grafanaUrl": "https://grafana.example.com"}},
    "models": {"storage": "pvc", "pvc": {"storageClass": "changeme"}},
    "enginePods": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.net:3128"}]},
    "serviceAccount": {"annotations": {"role-arn": "arn:aws:iam::123456789012:role/models"}},
    "service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["203.0.113.0/24"]},
    "tracing": {"otlpEndpoint": "http://your-collector:4318"},
}
SAID = [
    "image.registry is registry.example.com/llm, which is a placeholder: write the registry of",
    "ingress.hosts is llm.example.com, which is a placeholder: write the hosts that clients call",
    "httpRoute.hostnames is llm.example.org, which is a placeholder: write the hosts that",
    "metrics.dashboards.grafanaUrl is https://grafana.example.com, which is a placeholder: write",
    "models.pvc.storageClass is changeme, which is a placeholder: write one of kubectl get",
    "fleet.pools.chat.model is s3://<bucket>/qwen, which is a placeholder: write your own",
    "enginePods.env.value is http://proxy.example.net:3128, which is a placeholder",
    "serviceAccount.annotations.role-arn is arn:aws:iam::123456789012:role/models, which is",
    "service.loadBalancerSourceRanges is 203.0.113.0/24, which is a placeholder",
    "tracing.otlpEndpoint is http://your-collector:4318, which is a placeholder",
]
# What looks like one, and may be a real name.
KEPT = {
    "fleet": {
        "name": "example",
        "pools": {
            "chat": {
                "model": "org/example.compact",
                "engine_args": {"chat_template": "<system> you@example.com"},
            }
        },
    },
    "ingress": {"enabled": True, "hosts": ["myexample.com", "example.com.acme.internal"]},
    "models": {"storage": "pvc", "pvc": {"storageClass": "shared"}},
    "podAnnotations": {"note": "ask you@example.com"},
    "tracing": {"otlpEndpoint": "http://changeme-not.monitoring:4318"},
}


@pytest.fixture(scope="module")
def refused() -> str:
    with pytest.raises(HelmError) as error:
        render(LEFT)
    return str(error.value)


@pytest.mark.parametrize("words", SAID, ids=lambda words: words.partition(" is ")[0])
def test_a_placeholder_is_refused_with_its_key_and_the_remedy(refused: str, words: str) -> None:
    assert words in refused


def test_a_name_that_is_not_a_placeholder_is_accepted(refused: str) -> None:
    assert "llm.acme.internal" not in refused


def test_a_possible_real_name_is_accepted() -> None:
    assert render(KEPT)


def test_the_only_placeholder_in_shipped_values_is_the_host_on_bare_metal() -> None:
    texts = {file.stem: file.read_text() for file in [*VALUES_FILES, *PLATFORMS.values()]}
    assert [name for name, text in texts.items() if "example." in text] == ["bare-metal"]
    with pytest.raises(HelmError) as error:
        render(SIZES["single-node"], "--values", str(PLATFORMS["bare-metal"]))
    assert str(error.value).count("is a placeholder") == 1
    assert "ingress.hosts is llm.example.com" in str(error.value)
