"""Where a cluster is not like others: users it chooses, IPv6, GitOps, a Ray that wants a token."""

import json
import re
from typing import Any

import pytest

from tests.helm.fleets import values
from tests.helm.helm import Object, all_of_kind, of_kind, render, template
from tests.helm.ray_service import CI, every_group, fleet, head, of_fleet, pod
from tests.helm.test_kinds import pods
from tests.some import some

CHAT = {"chat": {"model": "Qwen/Qwen2.5-7B-Instruct"}}
OWN_SECRETS: dict[str, Any] = {
    "auth": {"generate": False, "existingSecret": "llm-auth"},
    "redis": {"existingSecret": "llm-redis"},
}


@pytest.fixture(scope="module")
def platform() -> list[Object]:
    return render(CI / "platform-values.yaml")


def test_a_cluster_may_choose_users_and_groups(platform: list[Object]) -> None:
    seen = dict(pods(platform))
    assert {"RayService head", "StatefulSet redis", "Job model-download"} <= set(seen)
    for spec in seen.values():
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context)


def test_a_user_id_may_be_removed_on_the_command_line() -> None:
    keys = ("runAsUser", "runAsGroup", "fsGroup")
    objects = render(values(), *(f"--set=podSecurityContext.{key}=null" for key in keys))
    for _, spec in some(pods(objects)):
        assert not {*keys} & spec["securityContext"].keys()
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_security_contexts_reach_every_pod_and_container_with_numbers_as_they_are() -> None:
    contexts: dict[str, Any] = {
        "podSecurityContext": {"runAsUser": 1000660000, "supplementalGroups": [2000]},
        "securityContext": {"privileged": False, "readOnlyRootFilesystem": False},
    }
    for _, spec in some(pods(render(values(**contexts)))):
        assert contexts["podSecurityContext"].items() <= spec["securityContext"].items()
        for container in spec["containers"]:
            assert contexts["securityContext"].items() <= container["securityContext"].items()
            assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_one_registry_and_one_secret_may_serve_all_images() -> None:
    mirror, chart = {"name": "mirror"}, {"name": "chart"}
    given: dict[str, Any] = {
        "global": {"imageRegistry": "registry.acme.internal/all", "imagePullSecrets": [mirror]},
        "imagePullSecrets": [chart, mirror],
        "warmNodes": {"enabled": True},
    }
    scaled = {"model": "a/b", "autoscaling": {"max_replicas": 2}}
    seen = dict(pods(render(values(pools={"chat": scaled}, **given))))
    assert {"Deployment placeholder", "StatefulSet redis", "Pod test"} <= set(seen)
    for spec in seen.values():
        assert spec["imagePullSecrets"] == [mirror, chart]
        for container in spec["containers"]:
            assert container["image"].startswith("registry.acme.internal/all/")
    (redis,) = seen["StatefulSet redis"]["containers"]
    assert redis["image"].startswith("registry.acme.internal/all/library/redis:")


def test_with_ipv6_all_processes_listen_on_ipv6_addresses(platform: list[Object]) -> None:
    service = of_kind(platform, "RayService")
    given = fleet(service)
    assert (given["gateway"]["host"], given["metrics"]["host"]) == ("::", "::")
    assert head(service)["rayStartParams"]["dashboard-host"] == "::"


def test_all_processes_listen_on_ipv4_addresses_by_default(minimal: Object) -> None:
    assert fleet(minimal)["gateway"]["host"] == "0.0.0.0"
    assert head(minimal)["rayStartParams"]["dashboard-host"] == "0.0.0.0"


def test_ray_requires_a_token_unless_configured_otherwise(
    minimal: Object, existing: Object
) -> None:
    assert minimal["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    assert "authOptions" not in existing["spec"]["rayClusterConfig"]


def test_probes_ask_only_what_ray_answers_without_a_token(full: Object) -> None:
    """Its dashboard's and agent's public paths (ray/dashboard/http_server_{head,agent}.py)."""
    public = {"/api/healthz", "/api/local_raylet_healthz"}
    for group in some(every_group(full).values()):
        (container,) = pod(group)["containers"]
        probes = json.dumps([container["livenessProbe"], container["readinessProbe"]])
        # a gateway's own is not Ray's
        assert set(re.findall(r"/api/\w+", probes)) <= public
        assert "/api/" in probes


@pytest.mark.parametrize("file", ["existing-secrets", "full"])
def test_rendering_twice_without_a_cluster_gives_the_same_text(file: str) -> None:
    """What Argo CD and `helm template | kubectl apply` do at every sync."""
    own = OWN_SECRETS if file == "full" else {}
    given = [f"--set={a}.{b}={v}" for a, of in own.items() for b, v in of.items()]
    first, second = (template(CI / f"{file}-values.yaml", *given) for _ in range(2))
    assert first == second
    assert "kind: Secret" not in first


def test_generated_secrets_differ_each_time() -> None:
    """This is why auth.generate exists."""
    assert template(values()) != template(values())


def test_no_secret_is_rendered_if_generation_is_disabled() -> None:
    objects = render(values(**OWN_SECRETS))
    assert all_of_kind(objects, "Secret") == []


def test_an_external_redis_with_a_secret_needs_no_generated_password() -> None:
    elsewhere = {"enabled": False, "external": {"existingSecret": "llm-redis"}}
    of_fleet(CHAT, **{**OWN_SECRETS, "redis": elsewhere})
