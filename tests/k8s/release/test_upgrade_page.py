"""docs/kubernetes/upgrade.md: every key of the chart has the effect that the page says."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from deployments.fleet import applications
from k8s.release.spec_changes import spec_changes
from k8s.release.upgrade_diff import serve_changes
from tests.helm.helm import ROOT, Object, all_of_kind, defaults, merged, of_kind, render

PAGE = (ROOT / "docs" / "kubernetes" / "upgrade.md").read_text()
KUBERAY = (1, 6)
SERVED = {"model": "org/model"}
VALUES: Object = {"fleet": {"name": "test", "pools": {"b": SERVED, "c": SERVED}}}
# the chart sets these keys itself, and rejects or overwrites others
SET_BY_CHART = {"gateway.host", "gateway.replicas_per_node", "metrics.host", "redis.url"}
OWN_REDIS = {"enabled": False, "external": {"url": "redis://redis.acme.internal:6379/0"}}
SECRETS = {"auth": {"existingSecret": "own"}, "redis": {"existingSecret": "own"}}
VOLUME = {"models": {"storage": "pvc", "download": {"enabled": True}}}
DISK = {"redis": {"persistence": {"enabled": True}}}
TOLERATIONS = [{"operator": "Exists"}]
RESOURCES = {"requests": {"cpu": "3", "memory": "70Gi"}, "limits": {"memory": "70Gi"}}
# an example of a change for each key
AFTER: Mapping[str, Any] = {
    "fleet.name": "other",
    "fleet.metrics.port": 9500,
    "fleet.gateway.port": 8001,
    "fleet.gateway.cpus": 0.2,
    "fleet.gateway.custom": {"own": 1},
    "fleet.gateway.drain_timeout_s": 500,
    "fleet.gateway.request_timeout_s": 500,
    "fleet.pools.NAME.model": "org/other",
    "fleet.pools.NAME.served_model_name": "other",
    "fleet.pools.NAME.engine_args": {"max_model_len": 1024},
    "fleet.pools.NAME.env": {"A": "b"},
    "fleet.pools.NAME.resources": {"cpus": 0.5},
    "fleet.pools.NAME.adapters": {"sources": ["acme"]},
    "fleet.pools.NAME.kv_tiers": {"host_bytes": "1Gi"},
    "fleet.pools.NAME.max_media_pixels": 10**6,
    "fleet.pools.NAME.max_ongoing_requests": 9,
    "fleet.pools.NAME.max_queued_requests": 9,
    "fleet.pools.NAME.prefill_rate": 9,
    "fleet.pools.NAME.quality": {"max_kl": 0.1},
    "fleet.pools.NAME.resume": "off",
    "fleet.pools.NAME.resume_proof": "0123456789abcdef",
    "fleet.pools.NAME.segment_tokens": 64,
    "fleet.pools.NAME.speculation": {"when_slower": "stop"},
    "global": {"imageRegistry": "mirror.acme.internal"},
    "fullnameOverride": "other",
    "image": {"gpu": {"tag": "9"}},
    "imagePullSecrets": [{"name": "own"}],
    "auth.existingSecret": "own",
    "auth.generate": False,
    "auth.tenants": ["default", "other"],
    "rayHead": {"resources": RESOURCES},
    "gatewayPods": {"resources": RESOURCES},
    "enginePods": {"resources": RESOURCES},
    "poolPods.NAME": {"resources": RESOURCES},
    "rayAuth": {"enabled": False},
    "rayAutoscaler": {"idleTimeoutSeconds": 400},
    "upgrade.strategy": "None",
    "upgrade.deletionDelaySeconds": 70,
    "upgrade.endpointRemovalSeconds": 20,
    "models.storage": "hostPath",
    "models.mountPath": "/own",
    "models.pvc.existingClaim": "own",
    "models.pvc.accessModes": ["ReadWriteOnce"],
    "models.pvc.size": "300Gi",
    "models.pvc.storageClass": "own",
    "models.hostPath.path": "/own",
    "models.download.enabled": False,
    "models.download.resources": RESOURCES,
    "models.download.nodeSelector": {"a": "b"},
    "models.download.tolerations": TOLERATIONS,
    "models.download.podTemplate": {"spec": {"dnsPolicy": "Default"}},
    "models.hub": {"existingSecret": "own"},
    "redis.enabled": False,
    "redis.existingSecret": "own",
    "redis.external.existingSecret": "own",
    "redis.external.url": "redis://other.acme.internal:6379/0",
    "redis.image": {"tag": "9"},
    "redis.resources": {"requests": {"cpu": "2"}},
    "redis.persistence.enabled": True,
    "redis.persistence.size": "9Gi",
    "redis.persistence.storageClass": "own",
    "redis.nodeSelector": {"a": "b"},
    "redis.tolerations": TOLERATIONS,
    "redis.podTemplate": {"spec": {"dnsPolicy": "Default"}},
    "gcsFaultTolerance": {"enabled": True},
    "service": {"type": "NodePort"},
    "ingress": {"enabled": True, "hosts": ["llm.acme.internal"]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "own"}], "hostnames": ["acme.internal"]},
    "metrics": {"prometheusRule": {"enabled": True}},
    "tracing": {"otlpEndpoint": "http://traces.acme.internal:4317"},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "warmNodes": {"enabled": True},
    "serviceAccount.create": False,
    "serviceAccount.name": "own",
    "serviceAccount.annotations": {"a": "b"},
    "podSecurityContext": {"runAsUser": 1001},
    "securityContext": {"readOnlyRootFilesystem": True},
    "ipFamily": "IPv6",
    "commonLabels": {"a": "b"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "schedulerName": "own",
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}}],
}
# what the values have before it, in addition to VALUES
BEFORE: Mapping[str, Object] = {
    "auth.generate": SECRETS,
    "models.mountPath": VOLUME,
    **{f"models.pvc.{key}": VOLUME for key in ("existingClaim", "size", "storageClass")},
    "models.pvc.accessModes": VOLUME,
    "models.hostPath.path": {"models": {"storage": "hostPath"}},
    **{key: VOLUME for key in AFTER if key.startswith("models.download.")},
    "models.hub": VOLUME,
    "redis.external.existingSecret": {
        "redis": {"enabled": False, "external": {"existingSecret": "x"}}
    },
    "redis.external.url": {"redis": OWN_REDIS},
    "redis.persistence.size": DISK,
    "redis.persistence.storageClass": DISK,
    "gcsFaultTolerance": DISK,
    "warmNodes": {
        "fleet": {
            "pools": {
                "b": {"slo": {"interactive": {"ttft_s": 1}}, "autoscaling": {"max_replicas": 2}}
            }
        }
    },
}


def rows() -> dict[str, tuple[str, str]]:
    """Each key of the page, with its effect and its note."""
    told = PAGE.partition("### Keys of the fleet")[2].partition("If you set a key of the fleet")[0]
    found = re.findall(r"^\| `([\w.]+)` \| ([\w ]+) \|(.*)\|$", told, re.M)
    return {key: (effect, note.strip()) for key, effect, note in found}


def without_restart() -> set[str]:
    """The keys of the page's table of settings that restart nothing."""
    told = PAGE.partition("### Settings that restart nothing")[2].partition("\n## ")[0]
    return {key.removeprefix("fleet.") for key in re.findall(r"`([\w.]+)`", told)}


def nested(key: str, value: Any) -> Object:
    """The value at its place in the values."""
    *above, last = key.replace("NAME", "b").split(".")
    found: Object = {last: value}
    for name in reversed(above):
        found = {name: found}
    return found


@cache
def rendered(text: str) -> list[Object]:
    return render(json.loads(text))


def objects_of(values: Object) -> list[Object]:
    return rendered(json.dumps(merged(VALUES, values), sort_keys=True))


def parts(objects: list[Object]) -> Iterator[Object]:
    """Objects other than the RayService, without the secrets that Helm draws."""
    for one in objects:
        if one["kind"] == "Secret":
            lines = {key: b64decode(of).count(b"\n") for key, of in one.get("data", {}).items()}
            yield {**one, "data": lines}
        elif one["kind"] != "RayService":
            yield one


def claims(objects: list[Object]) -> Object:
    """What cannot change of the claims of volumes, by name."""
    found = [
        of
        for one in all_of_kind(objects, "StatefulSet")
        for of in one["spec"].get("volumeClaimTemplates", ())
    ]
    return {one["metadata"]["name"]: one["spec"] for one in found} | {
        one["metadata"]["name"]: {**one["spec"], "resources": {}}
        for one in all_of_kind(objects, "PersistentVolumeClaim")
    }


def effect(before: list[Object], after: list[Object]) -> str:
    """What an upgrade does, in the page's words."""
    services = of_kind(before, "RayService"), of_kind(after, "RayService")
    if services[0]["metadata"]["name"] != services[1]["metadata"]["name"]:
        return "replaced"
    was, now = claims(before), claims(after)
    if any(was[name] != now[name] for name in was.keys() & now.keys()):
        return "rejected"
    old, new = (service["spec"] for service in services)
    if spec_changes(old["rayClusterConfig"], new["rayClusterConfig"], KUBERAY).changes:
        return "second cluster"
    served = serve_changes(old["serveConfigV2"], new["serveConfigV2"])
    if served.gateways or served.pools:
        return "engines" if not served.gateways else "all" if served.pools else "gateways"
    if redis_restarts(before, after):
        return "Redis"
    return "nothing restarts" if list(parts(before)) == list(parts(after)) else "object"


def redis_restarts(before: list[Object], after: list[Object]) -> bool:
    was, now = all_of_kind(before, "StatefulSet"), all_of_kind(after, "StatefulSet")
    return bool(was and now) and was[0]["spec"]["template"] != now[0]["spec"]["template"]


@pytest.mark.parametrize("key", sorted(rows()))
def test_a_change_of_each_key_has_the_effect_that_the_page_says(key: str) -> None:
    before = BEFORE.get(key, {})
    after = merged(before, nested(key, AFTER[key]))
    if key == "redis.enabled":
        after = {"redis": OWN_REDIS}  # without the chart's Redis, the values need another
    objects = objects_of(before), objects_of(after)
    told, note = rows()[key]
    assert effect(*objects) == told
    if told == "second cluster":
        assert redis_restarts(*objects) == ("Redis restarts, too." in note)


def test_every_key_of_the_fleet_is_on_the_page() -> None:
    of_fleet = {*applications.COLD_FOR_ALL, *applications.COLD_FOR_GATEWAYS} - SET_BY_CHART
    of_fleet = {key.replace("metrics", "metrics.port") for key in of_fleet}
    of_pools = {f"pools.NAME.{key}" for key in applications.COLD_FOR_POOL}
    told = {key.removeprefix("fleet.") for key in rows() if key.startswith("fleet.")}
    assert told - {"gateway.request_timeout_s"} == of_fleet | of_pools


def test_every_setting_that_restarts_nothing_is_on_the_page() -> None:
    hot = {*applications.HOT, *applications.HOT_OF_POOL} - {"gateway.request_timeout_s"}
    assert without_restart() == hot


def missing(values: Object, prefix: str = "") -> Iterator[str]:
    """Keys of the chart that neither are a row nor are in a section that is one."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in rows():
            continue
        if isinstance(value, Mapping) and any(row.startswith(f"{key}.") for row in rows()):
            yield from missing(dict(value), f"{key}.")
        else:
            yield key


def test_every_key_of_the_chart_is_on_the_page() -> None:
    values = {key: value for key, value in defaults().items() if key != "fleet"}
    assert values and not [*missing(values)]
