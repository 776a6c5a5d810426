"""How clients reach a release from outside: an Ingress, or a route of the Gateway API."""

from typing import Any

import pytest

from tests.helm.fleets import values
from tests.helm.helm import HelmError, Object, all_of_kind, render, template

NGINX = "nginx.ingress.kubernetes.io/"
LONG = {"gateway": {"request_timeout_s": 900.5, "drain_timeout_s": 30}}


def ingress(fleet: dict[str, Any] | None = None, **given: Any) -> Object:
    settings = {"enabled": True, "hosts": ["llm.acme.internal"], **given}
    (found,) = render(values(fleet=fleet, ingress=settings), show_only="templates/ingress.yaml")
    return found


def route(fleet: dict[str, Any] | None = None, **given: Any) -> Object:
    settings = {"enabled": True, "parentRefs": [{"name": "public"}], **given}
    found = render(values(fleet=fleet, httpRoute=settings), show_only="templates/httproute.yaml")
    return found[0]


def test_no_ingress_or_route_is_rendered_by_default() -> None:
    objects = render(values())
    assert not all_of_kind(objects, "Ingress") + all_of_kind(objects, "HTTPRoute")


def test_an_ingress_times_out_after_the_longest_request() -> None:
    annotations = ingress(LONG)["metadata"]["annotations"]
    assert annotations[f"{NGINX}proxy-read-timeout"] == "901"
    assert annotations[f"{NGINX}proxy-send-timeout"] == "901"


def test_a_longer_drain_counts_as_the_longest_request() -> None:
    annotations = ingress({"gateway": {"drain_timeout_s": 1200}})["metadata"]["annotations"]
    assert annotations[f"{NGINX}proxy-read-timeout"] == "1200"


def test_streams_are_not_buffered() -> None:
    assert ingress()["metadata"]["annotations"][f"{NGINX}proxy-buffering"] == "off"


@pytest.mark.parametrize(("given", "expected"), [(None, "4194304"), (1048576, "1048576")])
def test_an_ingress_takes_the_bodies_that_a_gateway_takes(given: Any, expected: str) -> None:
    annotations = ingress({"gateway": {"max_body_bytes": given}})["metadata"]["annotations"]
    assert annotations[f"{NGINX}proxy-body-size"] == expected


def test_annotations_of_the_values_override_those_of_the_chart() -> None:
    own = {f"{NGINX}proxy-read-timeout": "5", "cert-manager.io/cluster-issuer": "ours"}
    annotations = ingress(annotations=own)["metadata"]["annotations"]
    assert own.items() <= annotations.items()
    assert annotations[f"{NGINX}proxy-send-timeout"] == "600"


def test_each_host_leads_to_the_service() -> None:
    spec = ingress(hosts=["a.acme.internal", "b.acme.internal"], className="nginx")["spec"]
    assert [rule["host"] for rule in spec["rules"]] == ["a.acme.internal", "b.acme.internal"]
    for rule in spec["rules"]:
        (path,) = rule["http"]["paths"]
        assert path["backend"]["service"] == {"name": "afx-antefix", "port": {"name": "serve"}}
    assert spec["ingressClassName"] == "nginx"
    assert "tls" not in spec


def test_a_certificate_is_for_all_hosts() -> None:
    hosts = ["a.acme.internal", "b.acme.internal"]
    assert ingress(hosts=hosts, tls=[{"secretName": "certificate"}])["spec"]["tls"] == [
        {"hosts": hosts, "secretName": "certificate"}
    ]


def test_each_certificate_may_be_for_its_own_hosts() -> None:
    tls = [{"hosts": [f"{name}.acme.internal"], "secretName": name} for name in ("a", "b")]
    hosts = ["a.acme.internal", "b.acme.internal"]
    assert ingress(hosts=hosts, tls=tls)["spec"]["tls"] == tls


def test_a_path_may_be_of_another_type() -> None:
    (rule,) = ingress(path="/v1", pathType="ImplementationSpecific")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/v1", "ImplementationSpecific")


def test_an_ingress_without_hosts_is_refused() -> None:
    with pytest.raises(HelmError, match=r"ingress\.hosts is empty: set the host names"):
        template(values(ingress={"enabled": True}))


def test_a_route_times_out_after_the_longest_request() -> None:
    (rule,) = route(LONG)["spec"]["rules"]
    assert rule["timeouts"] == {"request": "901s", "backendRequest": "901s"}


def test_a_route_leads_to_the_services_port() -> None:
    spec = route(hostnames=["llm.acme.internal"])["spec"]
    assert spec["parentRefs"] == [{"name": "public"}]
    assert spec["hostnames"] == ["llm.acme.internal"]
    assert spec["rules"][0]["backendRefs"] == [{"name": "afx-antefix", "port": 80}]


def test_a_route_without_a_gateway_is_refused() -> None:
    with pytest.raises(HelmError, match=r"httpRoute\.parentRefs is empty: set the Gateway"):
        template(values(httpRoute={"enabled": True}))
