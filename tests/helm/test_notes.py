"""What a user reads after an install."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helm.helm import CHART, NAMESPACE, REGISTRY, RELEASE, run
from tests.shipped import INSTALLS, PLANNED_FILES, VALUES_FILES, combined

CHAT = {"model": "Qwen/Qwen2.5-7B-Instruct"}
# the values that an operator installs with, whole; those in ci/ only test the chart
WHOLE_VALUES = {
    **{name: combined(files) for name, files in INSTALLS.items()},
    **{file.stem: combined((file,)) for file in (*VALUES_FILES, *PLANNED_FILES)},
}


def notes(values: Path) -> str:
    arguments = (RELEASE, str(CHART), "--namespace", NAMESPACE, *REGISTRY, "--values", str(values))
    return run("install", *arguments, "--dry-run=client").partition("\nNOTES:\n")[2]


def not_enabled(text: str) -> str:
    return text.partition("Not enabled:")[2].partition("Check before production:")[0]


def to_check(text: str) -> str:
    return text.partition("Check before production:")[2].partition("Warnings:")[0]


@pytest.fixture(scope="module")
def minimal() -> str:
    return notes(CHART / "ci" / "minimal-values.yaml")


@pytest.fixture(scope="module")
def full() -> str:
    return notes(CHART / "ci" / "full-values.yaml")


def of_fleet(folder: Path, **values: Any) -> str:
    file = folder / "values.yaml"
    file.write_text(json.dumps(values))
    return notes(file)


def test_the_notes_have_a_command_that_prints_a_key(minimal: str) -> None:
    assert 'export OPENAI_API_KEY="$(antefix k8s key afx --namespace llm)"\n' in minimal


def test_the_notes_list_pods_and_keys_without_the_antefix_command(minimal: str) -> None:
    assert "kubectl -n llm get pods --selector app.kubernetes.io/instance=afx\n" in minimal
    secret = "kubectl -n llm get secret afx-antefix-auth -o jsonpath='{.data.api-keys}' | base64 -d"
    assert f"{secret}\n" in minimal


def test_without_an_ingress_the_example_request_uses_a_port_forward(minimal: str) -> None:
    assert "kubectl -n llm port-forward service/afx-antefix 8000:80 &" in minimal
    assert "curl -N http://127.0.0.1:8000/v1/chat/completions" in minimal


def test_with_an_ingress_the_example_request_goes_to_the_host(full: str) -> None:
    assert "curl -N https://llm.acme.internal/v1/chat/completions" in full
    assert "port-forward" not in full


def test_with_a_load_balancer_the_example_request_looks_up_its_address(tmp_path: Path) -> None:
    fleet = {"name": "chat", "pools": {"chat": {"model": "Qwen/Qwen2.5-7B-Instruct"}}}
    image, service = {"registry": "registry.acme.internal"}, {"type": "LoadBalancer"}
    printed = of_fleet(tmp_path, service=service, fleet=fleet, image=image)
    assert 'ADDRESS="$(kubectl -n llm get service afx-antefix -o jsonpath=' in printed
    assert "curl -N http://$ADDRESS:80/v1/chat/completions" in printed
    assert "port-forward" not in printed


def of_route(folder: Path, **parent: str) -> str:
    fleet = {"name": "x", "pools": {"chat": CHAT}}
    return of_fleet(folder, fleet=fleet, httpRoute={"enabled": True, "parentRefs": [parent]})


def test_a_route_without_hostnames_is_reached_through_the_address_of_its_gateway(
    tmp_path: Path,
) -> None:
    printed = of_route(tmp_path, name="public", namespace="gateways")
    command = "kubectl -n gateways get gateways.gateway.networking.k8s.io public -o jsonpath="
    assert f"ADDRESS=\"$({command}'{{.status.addresses[0].value}}')\"\n" in printed
    assert "curl -N http://$ADDRESS/v1/chat/completions" in printed
    assert "listener uses TLS, a host name or a port other than 80, change the URL" in printed
    assert "port-forward" not in printed


def test_the_gateway_of_a_route_is_by_default_in_the_namespace_of_the_release(
    tmp_path: Path,
) -> None:
    assert "kubectl -n llm get gateways" in of_route(tmp_path, name="public")


def test_a_route_that_attaches_to_no_gateway_is_tried_through_a_port_forward(
    tmp_path: Path,
) -> None:
    printed = of_route(tmp_path, name="llm", kind="Service", group="")
    assert "port-forward service/afx-antefix 8000:80" in printed
    assert "get gateways" not in printed


def test_the_example_request_is_json_that_names_a_model(minimal: str) -> None:
    body = json.loads(re.findall(r"-d '(.*)'", minimal)[0])
    assert body["model"] == "Qwen2.5-7B-Instruct"
    assert body["stream"] is True


def test_disabled_features_are_listed_with_the_key_that_enables_them(minimal: str) -> None:
    for key in (
        "ingress.enabled or httpRoute.enabled",
        "metrics.podMonitor.enabled",
        "metrics.prometheusRule.enabled",
        "metrics.dashboards.enabled",
        "tracing.otlpEndpoint",
        "models.storage",
        "warmNodes.enabled",
        "gcsFaultTolerance.enabled",
        "networkPolicy.egress.enabled",
    ):
        assert key in not_enabled(minimal)
    # on by default
    assert "networkPolicy.enabled" not in not_enabled(minimal)
    assert "podDisruptionBudget.enabled" not in not_enabled(minimal)


def test_features_that_values_disable_are_listed_too() -> None:
    listed = not_enabled(notes(CHART / "ci" / "cpu-only-values.yaml"))
    assert "networkPolicy.enabled" in listed
    assert "podDisruptionBudget.enabled" in listed


def test_the_notes_list_no_feature_if_all_are_enabled(full: str, minimal: str) -> None:
    assert "Not enabled" in minimal and "Not enabled" not in full


def test_the_notes_list_nothing_to_check_if_values_are_ready_for_production(
    full: str, minimal: str
) -> None:
    assert to_check(minimal) and not to_check(full)


def test_no_default_triggers_a_warning(minimal: str) -> None:
    assert "Warnings:" not in minimal


@pytest.mark.parametrize("name", sorted(WHOLE_VALUES))
def test_no_shipped_values_file_renders_a_warning(name: str, tmp_path: Path) -> None:
    assert "Warnings:" not in of_fleet(tmp_path, **WHOLE_VALUES[name])


def test_the_notes_warn_if_ray_has_no_token(minimal: str, tmp_path: Path) -> None:
    fleet, without = {"name": "x", "pools": {"chat": CHAT}}, {"enabled": False}
    warned = " ".join(of_fleet(tmp_path, fleet=fleet, rayAuth=without).split())
    assert "Network policies close them only if your network plugin enforces policies" in warned
    assert "set rayAuth.enabled" in warned
    open_ = of_fleet(tmp_path, fleet=fleet, networkPolicy={"enabled": False}, rayAuth=without)
    open_ = " ".join(open_.split())
    assert "run code there, and they are open: set rayAuth.enabled, or" in open_
    assert "run code there" not in minimal


def test_the_notes_link_to_grafana(full: str, minimal: str) -> None:
    assert "Grafana: https://grafana.acme.internal/dashboards?tag=antefix\n" in full
    assert "Grafana:" not in minimal


def test_the_notes_show_how_to_try_the_release(minimal: str) -> None:
    assert "helm -n llm test afx --timeout 20m --logs" in minimal


def test_the_notes_mention_a_single_gateway(minimal: str) -> None:
    assert "Set fleet.gateway.replicas to 2" in to_check(minimal)


@pytest.mark.parametrize("gateway", [{"drain_timeout_s": 60}, {"request_timeout_s": 900}])
def test_the_notes_warn_of_answers_that_a_drain_interrupts(
    tmp_path: Path, gateway: dict[str, int]
) -> None:
    fleet = {"name": "x", "pools": {"chat": CHAT}, "gateway": gateway}
    warnings = of_fleet(tmp_path, fleet=fleet).partition("Warnings:")[2]
    longest_s = gateway.get("request_timeout_s", 600)
    assert f"set fleet.gateway.drain_timeout_s to {longest_s} to" in " ".join(warnings.split())


def test_the_notes_warn_of_a_gpu_model_without_a_node_selector(tmp_path: Path) -> None:
    pool = {**CHAT, "resources": {"accelerator_type": "A100"}}
    fleet = {"name": "x", "pools": {"chat": pool}}
    warned = of_fleet(tmp_path, fleet=fleet)
    assert "poolPods.chat.nodeSelector" in warned
    selector = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    chosen = of_fleet(tmp_path, fleet=fleet, enginePods={"nodeSelector": selector})
    assert "nodeSelector" not in chosen


def test_the_notes_mention_a_host_path(tmp_path: Path) -> None:
    fleet = {"name": "x", "pools": {"chat": CHAT}}
    text = of_fleet(tmp_path, fleet=fleet, models={"storage": "hostPath"})
    assert "pod-security.kubernetes.io/enforce=privileged" in to_check(text)


def test_the_notes_mention_weights_on_a_nodes_own_disk(minimal: str, tmp_path: Path) -> None:
    mentioned = "A node\n  whose disk is too small evicts the pod"
    assert mentioned in to_check(minimal)
    embedded = {"chat": {"model": "embedded", "resources": {"gpus": 0}}}
    assert mentioned not in of_fleet(tmp_path, fleet={"name": "x", "pools": embedded})


def test_the_notes_mention_a_head_that_cannot_be_evicted(minimal: str, tmp_path: Path) -> None:
    assert "The head cannot be evicted" in to_check(minimal)
    fleet = {"name": "x", "pools": {"chat": CHAT}}
    free = of_fleet(tmp_path, fleet=fleet, podDisruptionBudget={"protectHead": False})
    assert "The head cannot be evicted" not in free


def test_every_model_is_named_as_requests_name_it(tmp_path: Path) -> None:
    pools = {
        "a": {"model": "embedded", "resources": {"gpus": 0}},
        "b": {**CHAT, "served_model_name": "chat"},
        "c": {"model": "/models/own/"},
    }
    text = of_fleet(tmp_path, fleet={"name": "x", "pools": pools})
    assert "Models: smollm2-135m-instruct, chat, own\n" in text
