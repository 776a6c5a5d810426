"""The Services that clients and gateways call: only gateways are behind them."""

from typing import Any

import pytest

from tests.helm.fleets import values
from tests.helm.helm import Object, all_of_kind, of_kind, render
from tests.helm.policies import selects
from tests.helm.ray_service import CI, container, every_group, ray_service, variables
from tests.some import some

Groups = dict[str, Object]


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render(CI / "full-values.yaml")


@pytest.fixture(scope="module")
def services(objects: list[Object]) -> list[Object]:
    names = ("afx-antefix", "afx-antefix-peers")
    return [s for s in all_of_kind(objects, "Service") if s["metadata"]["name"] in names]


def ports_of(group: Object) -> dict[str, int]:
    return {p["name"]: p["containerPort"] for p in container(group)["ports"]}


def test_the_services_select_only_gateways(objects: list[Object], services: list[Object]) -> None:
    """`kubectl port-forward service/...` takes any pod that is selected."""
    labels = {
        name: group["template"]["metadata"]["labels"]
        for name, group in every_group(of_kind(objects, "RayService")).items()
    }
    labels |= {
        f"{of['kind']} {of['metadata']['name']}": of["spec"]["template"]["metadata"]["labels"]
        for kind in ("StatefulSet", "Deployment", "Job")
        for of in all_of_kind(objects, kind)
    }
    assert len(services) == 2
    for service in services:
        selector = {"matchLabels": service["spec"]["selector"]}
        assert [name for name, own in labels.items() if selects(selector, own)] == ["gateway"]


def test_gateways_of_both_clusters_of_an_upgrade_are_selected(services: list[Object]) -> None:
    """Readiness says which take requests: tests/deployments/gateway/inquiries/test_health.py."""
    for service in some(services):
        assert not [key for key in service["spec"]["selector"] if key.startswith("ray.io/")]


def test_clients_reach_the_gateways_port(objects: list[Object]) -> None:
    service = of_kind([s for s in objects if s["metadata"]["name"] == "afx-antefix"], "Service")
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["ports"] == [{"name": "serve", "port": 8443, "targetPort": "serve"}]
    assert "service.beta.kubernetes.io/aws-load-balancer-type" in service["metadata"]["annotations"]
    groups = every_group(of_kind(objects, "RayService"))
    serving = {name: ports_of(group).get("serve") for name, group in groups.items()}
    assert serving == {"head": None, "gateway": 9000, "chat": None}


def test_gateways_find_each_other_regardless_of_the_clients_service(
    objects: list[Object], services: list[Object]
) -> None:
    (peers,) = [s for s in services if s["metadata"]["name"].endswith("-peers")]
    (port,) = peers["spec"]["ports"]
    url = f"http://{peers['metadata']['name']}:{port['port']}"
    gateway = every_group(of_kind(objects, "RayService"))["gateway"]
    assert variables(gateway)["ANTEFIX_PEERS_URL"] == url
    assert port == {"name": "serve", "port": 9000, "targetPort": "serve"}


def test_a_change_of_the_clients_service_changes_no_pod(minimal: Object) -> None:
    given: dict[str, Any] = {"port": 8443, "type": "NodePort"}
    fleet = {"name": "minimal", "pools": {"chat": {"model": "Qwen/Qwen2.5-7B-Instruct"}}}
    assert ray_service({"fleet": fleet, "service": given})["spec"] == minimal["spec"]


def test_the_service_of_kuberay_has_a_different_name(minimal: Object) -> None:
    """It writes what it selects at each switch: 1.5 to 1.7, reconcileServices."""
    own = minimal["spec"]["serveService"]
    assert "metadata" not in own  # then it is <name>-serve-svc
    assert own["spec"]["ports"] == [{"name": "serve", "port": 8000, "targetPort": "serve"}]
    assert minimal["spec"]["excludeHeadPodFromServeSvc"] is True


def test_a_load_balancer_gets_its_class_source_ranges_and_port() -> None:
    objects = render(CI / "pod-template-values.yaml", show_only="templates/service.yaml")
    (spec,) = [s["spec"] for s in objects if s["metadata"]["name"] == "afx-antefix"]
    assert spec["externalTrafficPolicy"] == "Local"
    assert spec["loadBalancerClass"] == "service.k8s.aws/nlb"
    assert spec["loadBalancerSourceRanges"] == ["10.20.0.0/16"]
    (port,) = spec["ports"]
    assert port == {"name": "serve", "port": 80, "targetPort": "serve", "nodePort": 30080}


def test_a_cluster_ip_service_has_no_load_balancer_fields() -> None:
    lets_in = {"loadBalancerSourceRanges": ["10.20.0.0/16"], "externalTrafficPolicy": "Local"}
    objects = render(values(service=lets_in), show_only="templates/service.yaml")
    for service in some(objects):
        assert set(service["spec"]) <= {"type", "selector", "ports"}
