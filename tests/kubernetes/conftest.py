"""The cluster of these tests and its KubeRay.

ANTEFIX_TEST_CLUSTER=yes gives them the cluster of the current kubeconfig, with the KubeRay that it
has. Otherwise they start a separate one where that is possible, with one KubeRay after the other.
No other cluster is so much as looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helm.helm import Object
from tests.kubernetes import own_cluster
from tests.kubernetes.api import Kubernetes, Refused
from tests.missing import missing

IS_GIVEN = os.environ.get("ANTEFIX_TEST_CLUSTER") == "yes"
OPERATORS = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
# of a cluster that the tests start themselves: version, and whose labels the operator's pods have
INSTALLED = [("1.5.1", "kustomization"), ("1.6.2", "chart")]
KUBERAYS = [None] if IS_GIVEN or not own_cluster.can_be_had() else INSTALLED
HOW = (
    "kind create cluster, install KubeRay in it by its Helm chart, then run make test-rest with "
    "ANTEFIX_TEST_CLUSTER=yes"
)


@dataclass(frozen=True)
class KubeRay:
    version: str
    operator: Object  # its Deployment


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubernetes]:
    if IS_GIVEN:
        given = Kubernetes(os.environ.get("KUBECONFIG", str(Path.home() / ".kube" / "config")))
        try:
            given.kubectl("get", "--raw", "/readyz")
        except Refused as error:
            missing(f"the cluster of the current kubeconfig does not answer ({error})")
        yield given
    elif own_cluster.can_be_had():
        try:
            with own_cluster.own_cluster() as kubeconfig:
                yield Kubernetes(kubeconfig)
        except own_cluster.NotStarted as error:
            missing(f"no cluster starts here: {error}")
    else:
        # not missing(): no command that CI could run makes a cluster everywhere
        pytest.skip(f"there is no Kubernetes to test on ({HOW})")


def kuberays_name(param: tuple[str, str] | None) -> str:
    return f"KubeRay {param[0]}" if param else "KubeRay"


@pytest.fixture(scope="session", params=KUBERAYS, ids=kuberays_name)
def kuberay(kubernetes: Kubernetes, request: pytest.FixtureRequest) -> KubeRay:
    if request.param:
        # the labels that it selects its pods by never change
        operator = ("deployment", "kuberay-operator", "--namespace", "default")
        kubernetes.kubectl("delete", *operator, "--ignore-not-found")
        own_cluster.install_kuberay(*request.param)
    found = kubernetes.objects("deployments", labels=OPERATORS)
    if not found:
        missing(f"the cluster of the current kubeconfig has no KubeRay ({HOW})")
    image = found[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    return KubeRay(image.rpartition(":")[2].removeprefix("v"), found[0])


# Kinds that other operators bring; the chart may render them.
OTHERS = [
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
]


@pytest.fixture(scope="session")
def operators_crds(kubernetes: Kubernetes) -> Iterator[None]:
    """Stand-ins, which take any field, for those that the cluster lacks."""
    made: list[str] = []
    served = kubernetes.kubectl("api-resources", "--output=name").split()
    for group, version, kind, plural in OTHERS:
        if f"{plural}.{group}" not in served:
            kubernetes.apply(any_fields(group, version, kind, plural))
            made.append(f"{plural}.{group}")
    for name in made:
        kubernetes.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=240s")
    yield
    if made:
        kubernetes.kubectl("delete", "crd", *made)


def any_fields(group: str, version: str, kind: str, plural: str) -> Object:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # for names that Kubernetes keeps for itself
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in of tests"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": anything},
                }
            ],
        },
    }
