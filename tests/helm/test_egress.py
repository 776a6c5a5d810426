"""Where pods may go, once `networkPolicy.egress.enabled` limits it."""

from typing import Any

import pytest

from tests.helm.fleets import SMALL, values
from tests.helm.helm import RELEASE, HelmError, Object, all_of_kind, of_kind, render
from tests.helm.policies import PodAt, allows, allows_egress
from tests.some import some

HUB = {"model": "Qwen/Qwen2.5-7B-Instruct", "resources": {"gpus": 0}}
PUBLIC, PUBLIC_6 = "93.184.216.34", "2606:2800:220:1::1"
PRIVATE = ["10.1.2.3", "172.20.0.1", "192.168.7.7", "100.64.0.9", "fd00:ec2::254", "fe80::1"]
METADATA = "169.254.169.254"
STRANGER = PodAt({"app": "stranger"}, namespace="other")
NEIGHBOUR = PodAt({"app": "neighbour"})


def release_pod(component: str) -> PodAt:
    return PodAt({"app.kubernetes.io/instance": RELEASE, "antefix/component": component})


COMPONENTS = ("head", "gateway", "engine", "redis", "model-download", "warm-nodes", "test")
PODS = {name: release_pod(name) for name in (*COMPONENTS, "placeholder")}


def policies(**more: Any) -> list[Object]:
    limits = {"egress": {"enabled": True, **more.pop("egress", {})}}
    given = values(pools={"chat": HUB}, networkPolicy=limits, **more)
    return all_of_kind(render(given), "NetworkPolicy")


@pytest.fixture(scope="module")
def limited() -> list[Object]:
    return policies()


def test_egress_is_unrestricted_by_default() -> None:
    made = all_of_kind(render(values()), "NetworkPolicy")
    assert made and all(policy["spec"]["policyTypes"] == ["Ingress"] for policy in made)
    none = values(networkPolicy={"enabled": False, "egress": {"enabled": True}})
    assert not all_of_kind(render(none), "NetworkPolicy")


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("gateway", "engine", 40000),
        ("gateway", "gateway", 8000),
        ("gateway", "redis", 6379),
        ("gateway", "head", 6379),
        ("engine", "redis", 6379),
        ("engine", "head", 6379),
        ("engine", "engine", 29500),
        ("engine", "gateway", 10002),
        ("head", "engine", 52365),
        ("head", "gateway", 52365),
        ("head", "redis", 6379),
        ("test", "gateway", 8000),
        ("warm-nodes", "gateway", 8000),
    ],
)
def test_pods_reach_what_the_fleet_needs(
    source: str, target: str, port: int, limited: list[Object]
) -> None:
    assert allows_egress(limited, PODS[source], PODS[target], port)
    assert allows(limited, PODS[source], PODS[target], port)


@pytest.mark.parametrize("source", sorted({*PODS} - {"redis", "placeholder"}))
def test_pods_with_any_egress_resolve_names(source: str, limited: list[Object]) -> None:
    for protocol in ("UDP", "TCP"):
        resolver = PodAt({"k8s-app": "kube-dns"}, namespace="kube-system")
        assert allows_egress(limited, PODS[source], resolver, 53, protocol)
        of_node, of_openshift = "169.254.20.10", 5353
        assert allows_egress(limited, PODS[source], of_node, 53, protocol)
        assert allows_egress(limited, PODS[source], resolver, of_openshift, protocol)


@pytest.mark.parametrize("source", ["engine", "model-download"])
def test_weights_are_downloaded_from_public_addresses_over_https(
    source: str, limited: list[Object]
) -> None:
    for address in (PUBLIC, PUBLIC_6):
        assert allows_egress(limited, PODS[source], address, 443)
        assert not allows_egress(limited, PODS[source], address, 80)
    closed = policies(egress={"internet": False}, models={"storage": "pvc"})
    assert not allows_egress(closed, PODS[source], PUBLIC, 443)


def test_ray_and_the_warm_nodes_controller_reach_the_kubernetes_api(limited: list[Object]) -> None:
    for port in (443, 6443):
        for source in ("head", "warm-nodes"):
            assert allows_egress(limited, PODS[source], "10.96.0.1", port)
    fixed = policies(rayAutoscaler={"enabled": False})
    assert not allows_egress(fixed, PODS["head"], "10.96.0.1", 443)


@pytest.mark.parametrize("source", sorted(PODS))
def test_no_pod_reaches_cloud_metadata_or_pods_of_others(
    source: str, limited: list[Object]
) -> None:
    others: list[PodAt | str] = [METADATA, STRANGER, NEIGHBOUR, PUBLIC, *PRIVATE]
    for port in (80, 8080, 6379, 8265):
        for target in others:
            assert not allows_egress(limited, PODS[source], target, port), (target, port)


@pytest.mark.parametrize("source", ["gateway", "engine", "model-download", "redis", "test"])
def test_private_addresses_are_blocked_on_the_https_port(
    source: str, limited: list[Object]
) -> None:
    others: list[PodAt | str] = [METADATA, STRANGER, NEIGHBOUR, *PRIVATE]
    for target in some(others):
        assert not allows_egress(limited, PODS[source], target, 443), target


def test_redis_and_placeholders_connect_nowhere(limited: list[Object]) -> None:
    targets: list[PodAt | str] = [PODS["engine"], PUBLIC]
    for source in ("redis", "placeholder"):
        for target in targets:
            for port in (53, 443, 6379):
                assert not allows_egress(limited, PODS[source], target, port)


def test_allowed_egress_applies_only_to_pods_that_may_need_it() -> None:
    rule: Object = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 9000}]}
    made = policies(egress={"allowed": [rule]})
    for source in ("head", "gateway", "engine", "model-download"):
        assert allows_egress(made, PODS[source], "10.1.2.3", 9000)
        assert not allows_egress(made, PODS[source], "10.2.2.3", 9000)
    for source in ("redis", "placeholder", "test", "warm-nodes"):
        assert not allows_egress(made, PODS[source], "10.1.2.3", 9000)


def test_every_pod_of_the_release_has_an_egress_policy() -> None:
    """By the labels that its own template gives it."""
    downloaded = {"storage": "pvc", "download": {"enabled": True}}
    autoscaling = {"min_replicas": 1, "max_replicas": 2}
    grows = {**HUB, "resources": {"gpus": 1}, "autoscaling": autoscaling, "slo": "default"}
    given = values(
        pools={"chat": grows, "small": SMALL},
        networkPolicy={"egress": {"enabled": True}},
        models=downloaded,
        warmNodes={"enabled": True},
    )
    objects = render(given)
    cluster = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    templates = [group["template"] for group in groups] + [
        found["spec"]["template"]
        for kind in ("StatefulSet", "Deployment", "Job")
        for found in all_of_kind(objects, kind)
    ]
    templates += all_of_kind(objects, "Pod")
    made = all_of_kind(objects, "NetworkPolicy")
    assert {template["metadata"]["labels"]["antefix/component"] for template in templates} == {
        *PODS
    }
    for template in templates:
        pod = PodAt(template["metadata"]["labels"])
        assert not allows_egress(made, pod, METADATA, 80), pod.labels


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"redis": {"enabled": False, "external": {"url": "redis://x:6379"}}}, "redis.external"),
        ({"tracing": {"otlpEndpoint": "http://collector:4318"}}, "tracing.otlpEndpoint"),
        ({"egress": {"internet": False}}, "the source of weights"),
    ],
)
def test_needed_egress_without_a_rule_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmError) as refused:
        policies(**more)
    assert f"no rule allows {said}: add one to networkPolicy.egress.allowed" in str(refused.value)
    rule: Object = {"to": [{"namespaceSelector": {}}]}
    egress = {**more.get("egress", {}), "allowed": [rule]}
    assert policies(**{**more, "egress": egress})
