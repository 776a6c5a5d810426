"""A release with all that the chart has: who may do what, whom policies admit, and what `antefix
k8s` reports of it to whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app
from tests.helm.helm import CHART, Object, put_on_path
from tests.kubernetes.api import Kubernetes, kubeconfig_with_token, until
from tests.kubernetes.conftest import KubeRay
from tests.kubernetes.course import IMAGES, RELEASE, settle

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

VALUES = CHART / "ci" / "full-values.yaml"
NAME = f"{RELEASE}-antefix"
# Verbs of a resource, of those with this name; an empty name: of all.
Rights = dict[tuple[str, str], set[str]]
# What Ray's autoscaler needs on the head, by a Role that KubeRay makes.
OF_THE_AUTOSCALER: Rights = {
    ("pods", ""): {"get", "list", "watch", "patch"},
    ("pods/resize", ""): {"patch"},
    ("rayclusters", ""): {"get", "patch"},
}
# docs/kubernetes/warm-nodes.md
OF_WARM_NODES: Rights = {
    ("deployments/scale", f"{NAME}-placeholder-chat"): {"get", "patch"},
    ("pods", ""): {"list"},
    ("leases", f"{NAME}-warm-nodes"): {"get", "update"},
}


@dataclass(frozen=True)
class Release:
    kubernetes: Kubernetes
    namespace: str

    def rights(self, account: str, namespace: str) -> Rights:
        """Of the release's service account there, what every account has left out."""
        everybodys = self._rights("default", namespace)
        return {
            about: verbs
            for about, verbs in self._rights(account, namespace).items()
            if about not in everybodys
        }

    def _rights(self, account: str, namespace: str) -> Rights:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        groups = ("accounts", f"accounts:{self.namespace}")
        told = self.kubernetes.kubectl(
            *("create", "--raw", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"),
            *("-f", "-", "--as", f"system:serviceaccount:{self.namespace}:{account}"),
            *(f"--as-group=system:service{group}" for group in groups),
            "--as-group=system:authenticated",
            stdin=json.dumps(review),
        )
        status = json.loads(told)["status"]
        assert not status["incomplete"], status
        return {
            (resource, name): set(rule["verbs"])
            for rule in status["resourceRules"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames") or [""]
        }


@pytest.fixture(scope="module")
def release(
    kubernetes: Kubernetes,
    kuberay: KubeRay,
    operators_crds: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Release]:
    """Installed from the package that `make release` publishes."""
    folder = tmp_path_factory.mktemp("package")
    kubernetes.helm("package", str(CHART), "--destination", str(folder))
    (package,) = folder.glob("antefix-*.tgz")
    with kubernetes.namespace() as namespace:
        chart = (RELEASE, str(package), "--namespace", namespace, "--values", str(VALUES))
        kubernetes.helm("install", *chart, *IMAGES)
        settle(kubernetes, namespace)
        yield Release(kubernetes, namespace)


@pytest.mark.parametrize(
    ("account", "may"), [(NAME, OF_THE_AUTOSCALER), (f"{NAME}-warm-nodes", OF_WARM_NODES)]
)
def test_an_account_may_do_no_more_than_the_docs_say(
    release: Release, account: str, may: Rights
) -> None:
    rights = release.rights(account, release.namespace)
    assert rights.keys() <= may.keys()
    assert all(verbs <= may[about] for about, verbs in rights.items()), rights
    assert not release.rights(account, "default")


def test_the_warm_nodes_controller_has_exactly_the_rights_it_needs(release: Release) -> None:
    assert release.rights(f"{NAME}-warm-nodes", release.namespace) == OF_WARM_NODES


def test_the_network_policy_of_the_head_admits_the_kuberay_operator(
    release: Release, kuberay: KubeRay
) -> None:
    (policy,) = (
        one
        for one in release.kubernetes.objects("networkpolicies", release.namespace)
        if one["metadata"]["name"] == f"{NAME}-head"
    )
    let_in = [
        pod["metadata"]["name"]
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        if {"port": 8265, "protocol": "TCP"} in rule.get("ports", ())
        and {"namespaceSelector", "podSelector"} <= peer.keys()
        for pod in release.kubernetes.objects("pods", labels=written(peer["podSelector"]))
    ]
    operator = kuberay.operator["metadata"]["name"]
    assert any(name.startswith(f"{operator}-") for name in let_in), policy["spec"]


def written(selector: Object) -> str:
    """As kubectl takes it."""
    labels = [f"{name}={value}" for name, value in selector.get("matchLabels", {}).items()]
    for one in selector.get("matchExpressions", ()):
        assert one["operator"] == "In", one
        labels.append(f"{one['key']} in ({','.join(one['values'])})")
    return ",".join(labels)


@pytest.fixture
def of_namespace(release: Release, tmp_path: Path) -> Path:
    """The kubeconfig of a user who may look at this namespace, but not at its Secrets."""
    kubernetes, namespace = release.kubernetes, release.namespace
    account = {"kind": "ServiceAccount", "name": "looker", "namespace": namespace}
    within = {"name": "looker", "namespace": namespace}
    rbac = "rbac.authorization.k8s.io"
    sees_ray = {"apiGroups": ["ray.io"], "resources": ["*"], "verbs": ["get", "list"]}
    kubernetes.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": within},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": within, "rules": [sees_ray]},
        *(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": within | {"name": f"looker-{kind.lower()}"},
                "roleRef": {"apiGroup": rbac, "kind": kind, "name": name},
                "subjects": [account],
            }
            for kind, name in (("Role", "looker"), ("ClusterRole", "view"))
        ),
    )
    token = kubernetes.kubectl("create", "token", "looker", "--namespace", namespace).strip()
    file = tmp_path / "kubeconfig"
    return kubeconfig_with_token(kubernetes.kubeconfig, token, namespace, file)


def asked(command: str, kubeconfig: str, *arguments: str) -> tuple[int, Any]:
    """The exit code, and what it says."""
    given = ["k8s", command, "--kubeconfig", kubeconfig, "-o", "json", *arguments]
    result = CliRunner().invoke(app, given)
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("who", ["admin", "namespace"])
def test_status_shows_what_the_release_waits_for(
    release: Release, of_namespace: Path, who: str
) -> None:
    kubeconfig = release.kubernetes.kubeconfig if who == "admin" else str(of_namespace)
    waits = ("--namespace", release.namespace)

    def told() -> bool:
        _, picture = asked("status", kubeconfig, *waits)
        coming = {group["name"] for group in picture["coming"]}
        return coming == {"head", "gateway", "chat"} and any(
            "exceeded quota: no-pods" in event for event in picture["events"]
        )

    until("status shows the cluster that is coming and why it has no pod", told)
    code, picture = asked("status", kubeconfig, *waits)
    assert code == ExitCode.NOT_READY
    assert picture["denied"] == []
    assert picture["endpoints"] == 0 and not picture["is_ready"]


@pytest.mark.parametrize("who", ["admin", "namespace"])
def test_a_diff_shows_a_second_cluster_only_for_another_image(
    release: Release,
    of_namespace: Path,
    who: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though KubeRay has written the objects as Go does, and the API server its defaults."""
    put_on_path(monkeypatch)
    kubeconfig = release.kubernetes.kubeconfig if who == "admin" else str(of_namespace)
    images, other = tmp_path / "images.yaml", tmp_path / "other.yaml"
    images.write_text("image: {registry: registry.acme.internal}")
    files = ("--values", str(VALUES), "--values", str(images))
    same = (RELEASE, *files, "--namespace", release.namespace)

    def told() -> bool:
        return bool(asked("diff", kubeconfig, *same)[1]["cluster"])

    until("KubeRay has made a RayCluster", told)
    _, found = asked("diff", kubeconfig, *same)
    nothing = ("hot", "cold", "pods", "added", "denied")
    assert {key: found[key] for key in nothing} == {key: [] for key in nothing}
    other.write_text("image: {cpu: {tag: another}}")
    _, found = asked("diff", kubeconfig, *same, "--values", str(other))
    assert found["second_cluster"] and {change["where"] for change in found["pods"]} >= {"head"}


def test_preflight_sees_everything_with_an_admins_rights(
    release: Release, kuberay: KubeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(release, release.kubernetes.kubeconfig, monkeypatch)
    assert found["KubeRay"]["severity"] == "ok", found["KubeRay"]
    assert kuberay.version in found["KubeRay"]["seen"]
    assert found["Secret hugging-face"]["severity"] == "problem"
    assert not [one for one in found.values() if "may not" in one["seen"]]


def test_preflight_names_what_a_namespaces_rights_do_not_show(
    release: Release, of_namespace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(release, str(of_namespace), monkeypatch)
    hidden = " ".join(one["seen"] for one in found.values())
    for resource in ("nodes", "secrets"):
        assert f"may not list {resource}" in hidden or f"may not get {resource}" in hidden
    assert not any(title.startswith("room for") for title in found)


def findings(
    release: Release, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, str]]:
    """By their titles."""
    put_on_path(monkeypatch)
    arguments = (RELEASE, "--namespace", release.namespace, "--no-engine-args")
    code, said = asked("preflight", kubeconfig, "--values", str(VALUES), *arguments)
    assert code == ExitCode.FOUND
    return {finding["title"]: finding for finding in said["findings"]}
