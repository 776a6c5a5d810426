"""Keys that the chart makes: who has one, and that an upgrade keeps it."""

import base64
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import pytest

from deployments.gateway.intake.keys_file import plain_keys, stored
from tests.helm.helm import CHART, NAMESPACE, RELEASE, Object, all_of_kind, of_kind, render
from tests.k8s.api import Api
from tests.k8s.kinds import crd

FLEET = {"name": "x", "pools": {"chat": {"model": "Qwen/Qwen2.5-7B-Instruct"}}}
NAME = f"{RELEASE}-antefix-auth"


def installed(data: Mapping[str, str]) -> Object:
    """The Secret of an earlier release."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": RELEASE,
                "meta.helm.sh/release-namespace": NAMESPACE,
            },
        },
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def secret(tenants: list[str], *there: Object) -> Any:
    """What it holds as an install or upgrade would write it, in a cluster that has `there`."""
    # with the kinds of all other objects, Helm asks the cluster about this one
    kinds = [crd("ray.io", "RayService", "v1")]
    with Api(*kinds, *there) as api:
        objects = render(
            {"fleet": FLEET, "auth": {"tenants": tenants}},
            *("--dry-run=server", "--disable-openapi-validation"),
            *("--kubeconfig", str(api.kubeconfig)),
            show_only="templates/auth-secret.yaml",
        )
    held = of_kind(objects, "Secret", NAME)["data"]
    return {key: b64decode(value).decode() for key, value in held.items()}


def tenants_of(data: Mapping[str, str]) -> list[str]:
    return list(plain_keys(data["api-keys"]).values())


def test_every_tenant_gets_a_separate_key() -> None:
    made = secret(["default", "batch"])
    assert tenants_of(made) == ["default", "batch"]
    assert all(re.fullmatch(r"[A-Za-z0-9]{40}", key) for key in plain_keys(made["api-keys"]))
    assert re.fullmatch(r"[A-Za-z0-9]{40}", made["engine-secret"])
    assert made["engine-secret"] not in made["api-keys"]


def test_an_upgrade_keeps_existing_keys() -> None:
    old = {"api-keys": "default=first\ndefault=second", "engine-secret": "0123"}
    assert secret(["default"], installed(old)) == old


def test_a_tenant_that_is_added_gets_a_key_and_the_others_keep_theirs() -> None:
    old = {"api-keys": "default=first,ops=second", "engine-secret": "x"}
    made = secret(["default", "ops", "batch"], installed(old))
    assert made["api-keys"].startswith("default=first\nops=second\nbatch=")
    assert tenants_of(made) == ["default", "ops", "batch"]


def test_an_upgrade_keeps_hashed_keys_and_restores_no_commented_key() -> None:
    hashed = stored("default", "key-of-the-default-tenant").line()
    old = {"api-keys": f"default=first\n{hashed}\n# none, default=old", "engine-secret": "x"}
    kept = secret(["default"], installed(old))["api-keys"]
    assert kept == f"default=first\n{hashed}"


def test_a_removed_tenant_loses_its_key() -> None:
    old = {"api-keys": "default=first\nops=second", "engine-secret": "x"}
    assert secret(["default"], installed(old))["api-keys"] == "default=first"


@pytest.fixture(scope="module")
def with_existing() -> list[Object]:
    return render(CHART / "ci" / "existing-secrets-values.yaml")


def test_no_secret_is_created_if_an_existing_one_is_configured(with_existing: list[Object]) -> None:
    assert all_of_kind(with_existing, "Secret") == []


def test_the_service_account_is_created_unless_an_existing_one_is_configured(
    with_existing: list[Object],
) -> None:
    assert all_of_kind(with_existing, "ServiceAccount") == []
    made = of_kind(
        render(CHART / "ci" / "full-values.yaml", show_only="templates/serviceaccount.yaml"),
        "ServiceAccount",
    )
    assert made["automountServiceAccountToken"] is False
    assert list(made["metadata"]["annotations"]) == ["eks.amazonaws.com/role-arn"]
