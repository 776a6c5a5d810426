"""What preflight finds of KubeRay's operator."""

from __future__ import annotations

import pytest

from k8s.preflight.kuberay import may_reach, version_of
from tests.k8s.asking import EIGHT, finding_titled, preflight_findings
from tests.k8s.kinds import crd
from tests.k8s.objects import NAMESPACE, RAYSERVICES, Object, namespace, node, operator


def test_a_cluster_without_kuberay_gets_the_line_that_installs_it() -> None:
    finding = finding_titled(preflight_findings(node("cpu-1"), EIGHT), "KubeRay")
    assert finding.severity == "problem"
    assert "helm install kuberay-operator" in finding.remedy


def test_crds_of_an_old_kuberay_are_a_problem() -> None:
    old = crd("ray.io", "RayService", "v1alpha1")
    assert (
        finding_titled(preflight_findings(old, operator(), EIGHT), "KubeRay").severity == "problem"
    )


@pytest.mark.parametrize(
    "made, severity, seen",
    [
        (operator("v1.3.2"), "problem", "quay.io/kuberay/operator:v1.3.2 is older than 1.5"),
        (operator("v1.6.2"), "ok", "quay.io/kuberay/operator:v1.6.2"),
        (
            operator("v1.7.0"),
            "note",
            "operator:v1.7.0, newer than 1.6, the newest that Antefix was tested with",
        ),
        (operator("nightly"), "note", "whose tag names no version"),
        (operator("sha-1.2@sha256:0"), "note", "whose tag names no version"),
        (operator(ready=0), "problem", "kuberay-operator has no ready pod"),
        (operator(args=["--watch-namespace=a,b"]), "problem", "watches only a, b, not llm"),
        (operator(args=["--watch-namespace", "a,llm"]), "ok", "v1.5.1"),
    ],
    ids=["old", "known", "new", "nightly", "digest", "not ready", "watches others", "watches ours"],
)
def test_the_operator_must_be_recent_ready_and_watch_the_namespace(
    made: Object, severity: str, seen: str
) -> None:
    finding = finding_titled(preflight_findings(RAYSERVICES, made, node("cpu-1"), EIGHT), "KubeRay")
    assert finding.severity == severity
    assert seen in finding.seen


@pytest.mark.parametrize("policies, severity", [(True, "problem"), (False, "warning")])
def test_an_invisible_operator_may_need_operator_peers_if_network_policies_are_enabled(
    policies: bool, severity: str
) -> None:
    values = {"networkPolicy": {"enabled": policies}}
    finding = finding_titled(
        preflight_findings(RAYSERVICES, node("cpu-1"), EIGHT, values=values), "KubeRay"
    )
    assert finding.severity == severity
    assert ("networkPolicy.operatorPeers" in finding.remedy) == policies


BESIDE = (RAYSERVICES, node("cpu-1"), namespace(NAMESPACE), EIGHT)


@pytest.mark.parametrize("name", ["kuberay-operator", "kuberay"], ids=["chart", "kustomization"])
def test_an_operator_with_the_labels_of_either_install_reaches_the_head(name: str) -> None:
    assert (
        finding_titled(preflight_findings(*BESIDE, operator(name=name)), "KubeRay").severity == "ok"
    )


def test_an_operator_that_the_network_policy_does_not_admit_is_a_problem() -> None:
    renamed = operator()
    renamed["spec"]["template"]["metadata"]["labels"] = {"app": "ray"}
    renamed["spec"]["selector"] = {"matchLabels": {"app": "ray"}}
    finding = finding_titled(preflight_findings(*BESIDE, renamed), "KubeRay")
    assert finding.severity == "problem"
    assert "keeps its operator kuberay-operator (app=ray) from port 8265" in finding.seen
    peers = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "ray"}}}]
    for values in ({"operatorPeers": peers}, {"enabled": False}):
        found = preflight_findings(*BESIDE, renamed, values={"networkPolicy": values})
        assert finding_titled(found, "KubeRay").severity == "ok"


LABELS = {"app": "ray"}
RAY_PODS: Object = {"podSelector": {"matchLabels": LABELS}}


@pytest.mark.parametrize(
    "rule, namespace, may",
    [
        ({}, "kuberay", True),
        ({"ports": [{"port": 6379}]}, "kuberay", False),
        ({"ports": [{"port": 8000, "endPort": 9000}]}, "kuberay", True),
        ({"from": [RAY_PODS]}, "kuberay", False),
        ({"from": [RAY_PODS]}, "", True),
        ({"from": [{"podSelector": {"matchLabels": {"app": "other"}}}]}, "", False),
        ({"from": [{"namespaceSelector": {}}]}, "kuberay", True),
        (
            {
                "from": [
                    {
                        "namespaceSelector": {
                            "matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}
                        }
                    }
                ]
            },
            "kuberay",
            False,
        ),
        ({"from": [{"namespaceSelector": {"matchLabels": {"team": "ml"}}}]}, "kuberay", True),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, "kuberay", True),
    ],
    ids=[
        *("anybody", "another port", "a range", "same namespace only", "in it", "other labels"),
        *("all namespaces", "another namespace", "unknown labels", "addresses"),
    ],
)
def test_a_network_policy_is_evaluated_as_kubernetes_does(
    rule: Object, namespace: str, may: bool
) -> None:
    policy: Object = {"spec": {"ingress": [rule]}}
    assert may_reach([policy], 8265, LABELS, namespace) == may


def test_without_policies_all_peers_may_connect() -> None:
    assert may_reach([], 8265, {}, "kuberay")
    assert not may_reach([{"spec": {"ingress": []}}], 8265, {}, "kuberay")


@pytest.mark.parametrize(
    "image, version",
    [
        ("quay.io/kuberay/operator:v1.6.2", (1, 6, 2)),
        ("operator:1.5", (1, 5, 0)),
        ("registry:5000/operator", ()),
        ("operator:v1.6.2@sha256:0", (1, 6, 2)),
    ],
)
def test_a_version_is_read_from_the_tag(image: str, version: tuple[int, ...]) -> None:
    assert version_of(image) == version


@pytest.mark.parametrize("version, severity", [("v1.5.0", "problem"), ("v1.5.1", "ok")])
def test_ray_token_authentication_needs_a_kuberay_that_supports_it(
    version: str, severity: str
) -> None:
    values = {"rayAuth": {"enabled": True}}
    finding = finding_titled(
        preflight_findings(*BESIDE, operator(version), values=values), "KubeRay"
    )
    assert finding.severity == severity
