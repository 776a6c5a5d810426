"""What an operator adds to pods, by name and by podTemplate."""

from typing import Any

import pytest

from tests.helm.fleets import values
from tests.helm.helm import Object, all_of_kind, of_kind, render
from tests.helm.ray_service import CI, container, every_group, groups, head, pod
from tests.some import some

FILE = CI / "pod-template-values.yaml"


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render(FILE)


@pytest.fixture(scope="module")
def service(objects: list[Object]) -> Object:
    return of_kind(objects, "RayService")


@pytest.fixture(scope="module")
def chat(service: Object) -> Object:
    return pod(groups(service)["chat"])


def named(items: list[Any], name: str) -> Any:
    (found,) = [item for item in items if item["name"] == name]
    return found


def pod_of(objects: list[Object], kind: str, name: str) -> Any:
    return of_kind(objects, kind, name)["spec"]["template"]["spec"]


def test_each_group_has_its_own_priority(service: Object) -> None:
    priorities = {n: pod(g).get("priorityClassName") for n, g in every_group(service).items()}
    assert priorities == {"head": "system", "gateway": None, "chat": "serving", "plain": None}


def test_labels_and_the_scheduler_are_those_of_all_ray_pods(service: Object) -> None:
    for group in some(every_group(service).values()):
        assert group["template"]["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert pod(group)["schedulerName"] == "volcano"


def test_a_variable_of_the_values_replaces_the_charts_variable_of_that_name(chat: Object) -> None:
    given = named(chat["containers"], "ray-engine")["env"]
    names = [variable["name"] for variable in given]
    assert len(names) == len(set(names))
    assert named(given, "ANTEFIX_UNHEARD_S") == {"name": "ANTEFIX_UNHEARD_S", "value": "20"}
    assert named(given, "POD_IP")["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert named(given, "ANTEFIX_ENGINE_SECRET")["valueFrom"]


def test_containers_that_download_weights_have_the_engines_environment(
    objects: list[Object], chat: Object
) -> None:
    (waits,) = chat["initContainers"]
    (job,) = pod_of(objects, "Job", "models")["containers"]
    for downloads in (waits, job):
        assert named(downloads["env"], "SSL_CERT_FILE")["value"] == "/etc/ssl/own/ca.crt"
    assert named(waits["volumeMounts"], "own-ca")["mountPath"] == "/etc/ssl/own"


def test_volumes_and_mounts_are_added_to_those_of_the_chart(chat: Object) -> None:
    volumes = [volume["name"] for volume in chat["volumes"]]
    assert volumes == ["auth", "models", "model-list", "own-ca", "fast", "shm"]
    mounts = named(chat["containers"], "ray-engine")["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts][-3:] == ["/etc/ssl/own", "/fast", "/dev/shm"]


def test_a_pod_template_overrides_all_other_values(service: Object, chat: Object) -> None:
    assert groups(service)["chat"]["template"]["metadata"]["labels"]["cost-centre"] == "llm"
    assert chat["tolerations"] == [{"operator": "Exists"}]
    assert chat["dnsConfig"]["options"] == [{"name": "ndots", "value": "2"}]
    assert "fsGroup" not in chat["securityContext"]
    assert chat["securityContext"]["runAsUser"] == 1000
    assert chat["securityContext"]["supplementalGroups"] == [2000]
    assert pod(head(service))["terminationGracePeriodSeconds"] == 30
    annotations = head(service)["template"]["metadata"]["annotations"]
    assert annotations == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


def test_containers_are_merged_by_name_and_the_ray_container_stays_first(chat: Object) -> None:
    ray, sidecar = chat["containers"]
    assert (ray["name"], sidecar["name"]) == ("ray-engine", "sidecar")
    assert ray["workingDir"] == "/fast"
    assert ray["image"] == "registry.acme.internal/antefix-gpu:0.1.0"
    assert ray["resources"]["limits"] == {
        "hugepages-2Mi": "1Gi",
        "memory": "64Gi",
        "nvidia.com/gpu": "1",
    }


def test_quantities_are_rendered_as_kuberay_writes_them(chat: Object) -> None:
    assert chat["containers"][1]["resources"]["requests"] == {"cpu": "500m", "memory": "64Mi"}
    claim = named(chat["volumes"], "fast")["ephemeral"]["volumeClaimTemplate"]
    assert claim["metadata"] == {}
    assert claim["spec"]["resources"]["requests"] == {"storage": "100Gi"}
    assert named(chat["volumes"], "shm")["emptyDir"]["sizeLimit"] == "1536Mi"


def test_the_pod_template_of_a_pool_replaces_that_of_engines(service: Object) -> None:
    plain = pod(groups(service)["plain"])
    assert plain["hostname"] == "plain"
    assert len(plain["containers"]) == 1
    assert named(container(groups(service)["plain"])["env"], "SSL_CERT_FILE")


def test_gateways_spread_over_zones(service: Object) -> None:
    (rule,) = pod(groups(service)["gateway"])["topologySpreadConstraints"]
    assert rule["topologyKey"] == "topology.kubernetes.io/zone"


def test_redis_the_download_job_and_the_controller_have_pod_templates(
    objects: list[Object],
) -> None:
    redis = pod_of(objects, "StatefulSet", "redis")
    assert redis["priorityClassName"] == "system"
    (runs,) = redis["containers"]
    assert runs["image"].startswith("docker.io/library/redis@sha256:0123")
    assert named(runs["env"], "TZ")["value"] == "UTC"
    assert named(runs["env"], "REDISCLI_AUTH")["valueFrom"]
    assert pod_of(objects, "Job", "models")["activeDeadlineSeconds"] == 7200
    assert pod_of(objects, "Deployment", "warm-nodes")["nodeSelector"] == {"node-role": "system"}


def test_a_changed_pod_template_creates_a_new_job(objects: list[Object]) -> None:
    less = ["--set", "models.download.podTemplate.spec.activeDeadlineSeconds=60"]
    other = of_kind(render(FILE, *less), "Job", "models")
    assert other["metadata"]["name"] != of_kind(objects, "Job", "models")["metadata"]["name"]


def test_an_ingress_may_expose_only_the_api(objects: list[Object]) -> None:
    (rule,) = of_kind(objects, "Ingress")["spec"]["rules"]
    assert [path["path"] for path in rule["http"]["paths"]] == ["/v1"]


def test_extra_objects_are_rendered_unchanged(objects: list[Object]) -> None:
    (made,) = [o for o in all_of_kind(objects, "ConfigMap") if o["metadata"]["name"] == "own-ca"]
    assert made["data"] == {"ca.crt": "-"}


def test_a_pod_without_a_pod_template_has_no_empty_fields() -> None:
    service = of_kind(render(values()), "RayService")
    for group in some(every_group(service).values()):
        for spec in (pod(group), *pod(group)["containers"]):
            assert not [key for key, value in spec.items() if value in (None, "", [], {})]
