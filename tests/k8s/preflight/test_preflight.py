"""What preflight finds other than room, in clusters that the API of tests/k8s/api.py plays."""

from __future__ import annotations

import pytest

from common.errors import Problem
from k8s.client.cluster import Cluster
from tests.k8s.api import Api
from tests.k8s.asking import EIGHT, READY, finding_titled, preflight_findings, warnings_and_problems
from tests.k8s.kinds import crd
from tests.k8s.objects import (
    A100,
    NAMESPACE,
    RAYSERVICES,
    Object,
    named,
    namespace,
    node,
    operator,
    pod,
    quota,
    secret,
)


def test_a_cluster_that_has_everything_shows_no_problem() -> None:
    found = preflight_findings(*READY, EIGHT)
    assert warnings_and_problems(found) == {}
    assert finding_titled(found, "GPUs").seen == f"{A100}: a100-1 8 (8 free)"
    assert finding_titled(found, "Kubernetes").seen == "v1.34.0"
    assert (
        finding_titled(found, "room for llama").seen
        == "1 pod of 1 GPU, 8 cores, 64 GiB memory: on a100-1"
    )


@pytest.mark.parametrize(
    "version, severity",
    [("1.26", "problem"), ("1.27", "note"), ("1.33", "note"), ("1.34", "ok"), ("1.35", "note")],
)
def test_a_server_must_not_be_too_old_and_an_untested_version_is_noted(
    version: str, severity: str
) -> None:
    found = finding_titled(preflight_findings(*READY, EIGHT, version=version), "Kubernetes")
    assert found.severity == severity
    tested = "; Antefix was tested only on Kubernetes 1.34"
    assert found.seen == f"v{version}.0{tested if severity == 'note' else ''}"


@pytest.mark.parametrize(
    "hard, used, seen",
    [
        (
            {"requests.nvidia.com/gpu": "4"},
            {"requests.nvidia.com/gpu": "4"},
            "1 requested, 0 of 4 left",
        ),
        ({"pods": "3"}, {}, "pods: 4 requested, 3 of 3 left"),
        ({"memory": "64Gi"}, {}, "memory: 72.5Gi requested, 64Gi of 64Gi left"),
        ({"limits.cpu": "100"}, {}, "pods of head, gateway, llama, redis have none"),
    ],
    ids=["gpus", "pods", "memory", "limits"],
)
def test_a_quota_that_would_refuse_pods_is_a_problem(
    hard: dict[str, str], used: dict[str, str], seen: str
) -> None:
    finding = finding_titled(
        preflight_findings(*READY, EIGHT, quota("team", hard, used)), "quota team"
    )
    assert finding.severity == "problem"
    assert seen in finding.seen


def test_limits_that_a_quota_asks_for_may_come_from_a_limit_range() -> None:
    limits = [{"type": "Container", "default": {"cpu": "4"}}]
    default = named("v1", "LimitRange", "default", NAMESPACE, spec={"limits": limits})
    counted = quota("team", {"limits.cpu": "100"})
    assert (
        finding_titled(preflight_findings(*READY, EIGHT, counted, default), "quota team").severity
        == "ok"
    )


def test_a_quota_used_by_the_release_itself_is_no_problem() -> None:
    own = pod("own", "cpu-1", namespace=NAMESPACE, labels={"app.kubernetes.io/instance": "antefix"})
    full = quota("team", {"pods": "5"}, {"pods": "4"})
    assert (
        finding_titled(preflight_findings(*READY, EIGHT, own, full), "quota team").severity
        == "warning"
    )
    assert (
        finding_titled(preflight_findings(*READY, EIGHT, full), "quota team").severity == "problem"
    )


def test_a_quota_that_leaves_enough_is_fine() -> None:
    roomy = quota("team", {"pods": "10", "requests.nvidia.com/gpu": "8"}, {"pods": "2"})
    assert finding_titled(preflight_findings(*READY, EIGHT, roomy), "quota team").severity == "ok"


@pytest.mark.parametrize(
    "values, served, title",
    [
        (
            {"metrics": {"podMonitor": {"enabled": True}, "prometheusNamespace": "*"}},
            crd("monitoring.coreos.com", "PodMonitor", "v1"),
            "metrics.podMonitor.enabled",
        ),
        (
            {"metrics": {"prometheusRule": {"enabled": True}}},
            crd("monitoring.coreos.com", "PrometheusRule", "v1"),
            "metrics.prometheusRule.enabled",
        ),
        (
            {"httpRoute": {"enabled": True}},
            crd("gateway.networking.k8s.io", "HTTPRoute", "v1"),
            "httpRoute.enabled",
        ),
    ],
    ids=["pod monitor", "rules", "route"],
)
def test_objects_of_others_need_their_crds(values: Object, served: Object, title: str) -> None:
    missing = finding_titled(preflight_findings(*READY, EIGHT, values=values), title)
    assert missing.severity == "problem" and f"set {title}: false" in missing.remedy
    assert (
        finding_titled(preflight_findings(*READY, EIGHT, served, values=values), title).severity
        == "ok"
    )


def test_an_ingress_needs_its_class() -> None:
    nginx = named("networking.k8s.io/v1", "IngressClass", "nginx")
    wanted = {"ingress": {"enabled": True, "className": "nginx"}}
    assert (
        finding_titled(
            preflight_findings(*READY, EIGHT, nginx, values=wanted), "ingress class"
        ).severity
        == "ok"
    )
    other = {"ingress": {"enabled": True, "className": "traefik"}}
    assert (
        "traefik does not exist; the cluster has nginx"
        in finding_titled(
            preflight_findings(*READY, EIGHT, nginx, values=other), "ingress class"
        ).seen
    )
    none = {"ingress": {"enabled": True}}
    assert (
        "no default class"
        in finding_titled(
            preflight_findings(*READY, EIGHT, nginx, values=none), "ingress class"
        ).seen
    )


@pytest.mark.parametrize("level, severity", [("restricted", "problem"), ("privileged", "ok")])
def test_host_paths_need_a_namespace_that_allows_them(level: str, severity: str) -> None:
    strict = namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": level})
    found = preflight_findings(*READY, EIGHT, strict, values={"models": {"storage": "hostPath"}})
    assert finding_titled(found, "pod security").severity == severity


def test_a_missing_namespace_is_a_note() -> None:
    found = preflight_findings(RAYSERVICES, operator(), node("cpu-1"), EIGHT)
    assert finding_titled(found, "namespace llm").severity == "note"


def test_secrets_named_in_values_must_exist_with_their_keys() -> None:
    values = {
        "auth": {"existingSecret": "keys"},
        "redis": {"existingSecret": "redis"},
        "models": {"hub": {"existingSecret": "hub"}},
        "imagePullSecrets": [{"name": "pull"}, {"name": "not-pull"}],
        "enginePods": {"envFrom": [{"secretRef": {"name": "s3"}}]},
    }
    there = [
        secret("keys", "api-keys"),
        secret("hub", "token"),
        secret("pull", ".dockerconfigjson", type="kubernetes.io/dockerconfigjson"),
        secret("not-pull", "password"),
    ]
    found = preflight_findings(*READY, EIGHT, *there, values=values)
    assert warnings_and_problems(found) == {
        "Secret keys": "auth.existingSecret needs its key engine-secret, which is missing",
        "Secret redis": "redis.existingSecret names it, but it does not exist",
        "Secret not-pull": (
            "has type Opaque, but imagePullSecrets needs kubernetes.io/dockerconfigjson"
        ),
        "Secret s3": "enginePods.envFrom names it, but it does not exist",
    }
    assert finding_titled(found, "Secret redis").remedy == (
        "kubectl create secret generic redis -n llm --from-literal=password=..."
    )
    assert finding_titled(found, "Secret hub").severity == "ok"


def test_a_certificate_that_cert_manager_creates_need_not_exist() -> None:
    nginx = named("networking.k8s.io/v1", "IngressClass", "nginx")
    ingress = {"enabled": True, "className": "nginx", "tls": [{"secretName": "tls"}]}
    missing = preflight_findings(*READY, EIGHT, nginx, values={"ingress": ingress})
    assert finding_titled(missing, "Secret tls").remedy == (
        "kubectl create secret tls tls -n llm --cert=... --key=..."
    )
    made = {**ingress, "annotations": {"cert-manager.io/cluster-issuer": "letsencrypt"}}
    assert (
        warnings_and_problems(preflight_findings(*READY, EIGHT, nginx, values={"ingress": made}))
        == {}
    )


@pytest.mark.parametrize(
    "verb, resource, without",
    [
        ("list", "nodes", "room for llama"),
        ("list", "deployments", "KubeRay"),
        ("get", "namespaces", "pod security"),
        ("list", "resourcequotas", "quota team"),
        ("get", "secrets", "Secret keys"),
    ],
)
def test_a_forbidden_request_is_a_finding_and_its_checks_are_skipped(
    verb: str, resource: str, without: str
) -> None:
    values = {"auth": {"existingSecret": "keys"}}
    there = [*READY, EIGHT, secret("keys"), quota("team", {"pods": "1"})]
    found = preflight_findings(*there, values=values, forbidden=(verb, resource))
    assert finding_titled(found, f"may not {verb} {resource}").severity == "warning"
    assert without not in [one.title for one in found]


def test_an_unreachable_cluster_is_one_clear_error() -> None:
    with Api() as api:
        api.away = True
        with pytest.raises(Problem, match=r"cluster at http://127\S+ does not answer"):
            Cluster(str(api.kubeconfig)).version()
