"""Who reaches whom. Labels and ports of Ray's pods are those that the RayService gives them."""

from typing import Any

import pytest

from tests.helm.fleets import SMALL, values
from tests.helm.helm import RELEASE, Object, all_of_kind, of_kind, render
from tests.helm.policies import PodAt, allows
from tests.some import some

SERVE, METRICS, REDIS, DASHBOARD, RAY_WORKER, ENGINE_HTTP = 8000, 9464, 6379, 8265, 10002, 40000
STRANGER = PodAt({"app": "stranger"}, namespace="other")
NEIGHBOUR = PodAt({"app": "neighbour"})
# as KubeRay's Helm chart labels it, and as its kustomization does (config/manager/manager.yaml)
OPERATORS = [
    PodAt({"app.kubernetes.io/name": name}, namespace="kuberay")
    for name in ("kuberay-operator", "kuberay")
]
OTHER_RELEASE = PodAt({"app.kubernetes.io/instance": "b", "antefix/component": "gateway"})
PROMETHEUS = PodAt({"app": "prometheus"}, namespace="monitoring")


def release_pod(component: str) -> PodAt:
    return PodAt({"app.kubernetes.io/instance": RELEASE, "antefix/component": component})


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    staged = {**SMALL, "model": "/m", "engine_args": {"pipeline_parallel_size": 2}}
    return render(values(pools={"chat": SMALL, "big": staged, "huge": staged}))


@pytest.fixture(scope="module")
def policies(objects: list[Object]) -> list[Object]:
    return all_of_kind(objects, "NetworkPolicy")


@pytest.fixture(scope="module")
def pods(objects: list[Object]) -> dict[str, PodAt]:
    """Pods of the RayService by the name of their group, and the others by their component."""
    cluster = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    groups = {"head": cluster["headGroupSpec"]} | {
        group["groupName"]: group for group in cluster["workerGroupSpecs"]
    }
    ray = {name: _ray_pod(group["template"]) for name, group in groups.items()}
    redis = PodAt(of_kind(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"])
    test = PodAt(of_kind(objects, "Pod")["metadata"]["labels"])
    return {**ray, "redis": redis, "test": test, "warm-nodes": release_pod("warm-nodes")}


def _ray_pod(template: dict[str, Any]) -> PodAt:
    ports = template["spec"]["containers"][0]["ports"]
    names = {port["name"]: port["containerPort"] for port in ports}
    return PodAt(template["metadata"]["labels"], ports=names)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("gateway", "chat", ENGINE_HTTP),
        ("gateway", "chat", 32768),
        ("gateway", "chat", 60999),
        ("gateway", "chat", RAY_WORKER),
        ("gateway", "redis", REDIS),
        ("gateway", "head", 6379),
        ("chat", "redis", REDIS),
        ("chat", "head", 6379),
        ("chat", "gateway", RAY_WORKER),
        ("chat", "big", RAY_WORKER),
        ("head", "redis", REDIS),
        ("head", "chat", 6380),
        ("head", "chat", 52365),
        ("head", "gateway", 19999),
        ("big", "big", 29500),
        ("big", "big", ENGINE_HTTP),
        ("gateway", "gateway", SERVE),
        ("test", "gateway", SERVE),
        ("warm-nodes", "gateway", SERVE),
    ],
)
def test_the_fleet_reaches_what_it_needs(
    source: str, target: str, port: int, pods: dict[str, PodAt], policies: list[Object]
) -> None:
    assert allows(policies, pods[source], pods[target], port)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("gateway", "redis", 22),
        ("redis", "chat", ENGINE_HTTP),
        ("redis", "head", 6379),
        ("test", "chat", ENGINE_HTTP),
        ("test", "redis", REDIS),
        ("test", "head", DASHBOARD),
        ("warm-nodes", "redis", REDIS),
        ("warm-nodes", "chat", ENGINE_HTTP),
        ("warm-nodes", "head", DASHBOARD),
        ("gateway", "test", 80),
    ],
)
def test_the_fleet_reaches_only_what_it_needs(
    source: str, target: str, port: int, pods: dict[str, PodAt], policies: list[Object]
) -> None:
    assert not allows(policies, pods[source], pods[target], port)


@pytest.mark.parametrize("source", [STRANGER, NEIGHBOUR, OTHER_RELEASE])
@pytest.mark.parametrize(
    ("target", "port"),
    [
        ("chat", ENGINE_HTTP),
        ("chat", RAY_WORKER),
        ("chat", 6380),
        ("big", 29500),
        ("redis", REDIS),
        ("head", 6379),
        ("head", DASHBOARD),
        ("head", 10001),
        ("gateway", RAY_WORKER),
        ("gateway", 52365),
    ],
)
def test_other_pods_cannot_reach_engines_redis_or_ray(
    source: PodAt, target: str, port: int, pods: dict[str, PodAt], policies: list[Object]
) -> None:
    assert not allows(policies, source, pods[target], port)


@pytest.mark.parametrize("source", [STRANGER, NEIGHBOUR])
def test_any_client_may_call_the_gateways(
    source: PodAt, pods: dict[str, PodAt], policies: list[Object]
) -> None:
    assert allows(policies, source, pods["gateway"], pods["gateway"].ports["serve"])


@pytest.mark.parametrize("operator", OPERATORS, ids=["chart", "kustomization"])
def test_the_kuberay_operator_reaches_only_the_dashboard_port_of_the_head(
    operator: PodAt, pods: dict[str, PodAt], policies: list[Object]
) -> None:
    head = pods["head"]
    assert allows(policies, operator, head, head.ports["dashboard"])
    assert not allows(policies, operator, head, 6379)
    assert not allows(policies, operator, pods["chat"], 52365)


def test_an_operator_with_another_name_is_admitted_where_it_is_listed(
    pods: dict[str, PodAt],
) -> None:
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}},
        "podSelector": {"matchLabels": {"app": "stranger"}},
    }
    found = render(
        values(networkPolicy={"operatorPeers": [peer]}), show_only="templates/networkpolicy.yaml"
    )
    assert allows(found, STRANGER, release_pod("head"), DASHBOARD)
    assert not allows(found, STRANGER, release_pod("head"), 6379)
    assert allows(found, OPERATORS[0], release_pod("head"), DASHBOARD)


def test_an_operator_is_admitted_only_from_the_configured_namespace() -> None:
    found = {
        name: render(
            values(networkPolicy={"operatorNamespace": name}),
            show_only="templates/networkpolicy.yaml",
        )
        for name in (OPERATORS[0].namespace, "another")
    }
    for name, policies in some(found.items()):
        admitted = allows(policies, OPERATORS[0], release_pod("head"), DASHBOARD)
        assert admitted == (name == OPERATORS[0].namespace)


@pytest.mark.parametrize(
    ("named", "admitted"),
    [
        ("", [NEIGHBOUR]),
        (PROMETHEUS.namespace, [PROMETHEUS]),
        ("*", [NEIGHBOUR, PROMETHEUS, STRANGER]),
    ],
)
def test_prometheus_reaches_only_the_metrics_ports(
    named: str, admitted: list[PodAt], pods: dict[str, PodAt]
) -> None:
    given = values(pools={"chat": SMALL}, metrics={"prometheusNamespace": named})
    policies = render(given, show_only="templates/networkpolicy.yaml")
    for source in (NEIGHBOUR, PROMETHEUS, STRANGER):
        for name in ("gateway", "chat", "head"):
            pod = pods[name]
            ports = [number for of, number in pod.ports.items() if of.endswith("metrics")]
            assert len(ports) == (1 if name == "head" else 2)
            for port in ports:
                assert allows(policies, source, pod, port) == (source in admitted)
            assert not allows(policies, source, pod, RAY_WORKER)


def test_no_range_of_ports_is_needed(policies: list[Object]) -> None:
    """Plugins that do not know endPort open its first port alone (kubernetes#110868)."""
    rules = [rule for policy in policies for rule in policy["spec"].get("ingress", [])]
    ports = [port for rule in rules for port in rule.get("ports", [])]
    assert ports and not [port for port in ports if "endPort" in port]


@pytest.fixture(scope="module")
def limited() -> list[Object]:
    """Policies with allowed clients, a namespace for Prometheus, and other ports."""
    clients = [
        {"podSelector": {"matchLabels": {"app": "neighbour"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}},
    ]
    given = values(
        fleet={"gateway": {"port": 8123}, "metrics": {"port": 9999}},
        networkPolicy={"allowedClients": clients},
        metrics={"prometheusNamespace": "monitoring"},
    )
    return render(given, show_only="templates/networkpolicy.yaml")


def test_only_allowed_clients_call_the_gateways(limited: list[Object]) -> None:
    gateway = release_pod("gateway")
    assert allows(limited, NEIGHBOUR, gateway, 8123)
    assert allows(limited, PodAt({"app": "nginx"}, namespace="ingress"), gateway, 8123)
    assert not allows(limited, STRANGER, gateway, 8123)
    assert not allows(limited, OTHER_RELEASE, gateway, 8123)


@pytest.mark.parametrize("component", ["test", "warm-nodes", "gateway"])
def test_the_releases_own_callers_are_always_allowed(component: str, limited: list[Object]) -> None:
    assert allows(limited, release_pod(component), release_pod("gateway"), 8123)


@pytest.mark.parametrize("component", ["gateway", "engine"])
def test_metrics_can_be_read_only_from_the_prometheus_namespace(
    component: str, limited: list[Object]
) -> None:
    assert allows(limited, PROMETHEUS, release_pod(component), 9999)
    assert not allows(limited, STRANGER, release_pod(component), 9999)


def test_rays_ports_are_those_that_the_policies_open(
    objects: list[Object], pods: dict[str, PodAt], policies: list[Object]
) -> None:
    cluster = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        given = {k: v for k, v in group["rayStartParams"].items() if k.endswith("-port")}
        assert len(given) == 7, given
        for parameter, port in given.items():
            assert allows(policies, pods["chat"], pods["gateway"], int(port)), parameter


def test_no_network_policy_is_rendered_when_disabled() -> None:
    objects = render(values(networkPolicy={"enabled": False}))
    assert not all_of_kind(objects, "NetworkPolicy")


def test_with_an_external_redis_no_redis_policy_is_rendered() -> None:
    external = {"enabled": False, "external": {"url": "redis://elsewhere:6379/0"}}
    objects = render(values(redis=external), show_only="templates/networkpolicy.yaml")
    assert not all_of_kind(objects, "NetworkPolicy", "redis")
