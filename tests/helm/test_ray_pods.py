"""The pods of Ray: where they run, what they know, how they begin and end."""

import os
import re
import subprocess
from pathlib import Path

import yaml
from ray._private.ray_constants import RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S

from tests.helm.helm import CHART, Object, run
from tests.helm.ray_service import (
    container,
    every_group,
    groups,
    head,
    of_fleet,
    pod,
    ray_service,
    variables,
)
from tests.some import some


def test_pool_settings_take_the_place_of_engines(cpu_only: Object) -> None:
    engine, other = groups(cpu_only)["engine"], groups(cpu_only)["other"]
    assert "nodeSelector" not in pod(engine)
    assert pod(other)["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert container(other)["resources"]["limits"] == {"cpu": "4", "memory": "4Gi"}
    assert container(other)["envFrom"] == [{"configMapRef": {"name": "other-settings"}}]


def test_each_group_has_its_own_node_selector_and_tolerations(full: Object) -> None:
    assert pod(head(full))["nodeSelector"] == {"node-role": "system"}
    assert pod(groups(full)["gateway"])["tolerations"][0]["key"] == "front"
    assert pod(groups(full)["chat"])["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_gateways_prefer_different_nodes_by_default(full: Object, minimal: Object) -> None:
    (rule,) = pod(groups(minimal)["gateway"])["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = groups(minimal)["gateway"]["template"]["metadata"]["labels"]
    selected = rule["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert selected.items() <= labels.items()
    assert "required" in "".join(pod(groups(full)["gateway"])["affinity"]["podAntiAffinity"])


def test_only_gpu_pods_have_the_runtime_class(existing: Object) -> None:
    assert pod(groups(existing)["chat"])["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod(groups(existing)["gateway"])


def test_prometheus_finds_gateways_and_engines(full: Object) -> None:
    for name in ("gateway", "chat"):
        ports = {p["name"]: p["containerPort"] for p in container(groups(full)[name])["ports"]}
        assert ports["antefix-metrics"] == 9500


def test_the_readiness_probe_fits_the_component_of_the_pod(full: Object) -> None:
    probes = {n: container(g)["readinessProbe"] for n, g in every_group(full).items()}
    assert probes["gateway"]["httpGet"] == {"path": "/health/serving", "port": "serve"}
    assert probes["chat"]["httpGet"]["path"] == "/api/local_raylet_healthz"
    assert probes["head"]["httpGet"] == {"path": "/api/healthz", "port": 52365}


def test_a_probe_takes_timings_from_the_values_and_the_rest_from_the_chart() -> None:
    slow = {"readinessProbe": {"periodSeconds": 30}, "livenessProbe": {"failureThreshold": 9}}
    own = {"livenessProbe": {"failureThreshold": 7}, "readinessProbe": {"periodSeconds": 30}}
    pools = {name: {"model": f"a/{name}"} for name in ("chat", "other")}
    found = groups(of_fleet(pools, enginePods=slow, poolPods={"other": own}))
    usual = container(found["gateway"])
    for name, failures in (("chat", 9), ("other", 7)):
        probes = container(found[name])
        assert probes["readinessProbe"]["periodSeconds"] == 30
        assert probes["livenessProbe"] == {**usual["livenessProbe"], "failureThreshold": failures}
    assert usual["readinessProbe"]["periodSeconds"] == 2


def test_the_grace_period_of_a_pod_covers_its_longest_request(
    full: Object, autoscaled: Object
) -> None:
    drain = ["python", "-m", "deployments.node_drain"]
    for name, group in every_group(full).items():
        command = container(group)["lifecycle"]["preStop"]["exec"]["command"]
        flags = ["--head"] if name == "head" else []
        assert command == [*drain, *flags, "--after", "10", "--within", "910"]
        assert pod(group)["terminationGracePeriodSeconds"] == 940
    # 120.5 s, rounded up, and 2 s
    command = container(head(autoscaled))["lifecycle"]["preStop"]["exec"]["command"]
    assert command[-3:] == ["2", "--within", "123"]
    assert pod(head(autoscaled))["terminationGracePeriodSeconds"] == 153


def test_a_signal_ends_containers_whose_program_has_no_handler_for_it(full: Object) -> None:
    """As PID 1 of a separate namespace it would ignore SIGTERM."""
    for group in some(every_group(full).values()):
        assert pod(group)["shareProcessNamespace"] is True


def test_ray_does_not_wait_again_after_the_requests_of_a_pod_have_ended(full: Object) -> None:
    """The preStop has drained; Ray's own drain lasts 30 s where replicas have no other place."""
    assert RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S > 0  # otherwise the variable is needed no more
    for group in every_group(full).values():
        assert variables(group)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"


def test_a_failed_pod_shows_its_last_log_lines(full: Object) -> None:
    for group in some(every_group(full).values()):
        for one in [container(group), *pod(group).get("initContainers", [])]:
            assert one["terminationMessagePolicy"] == "FallbackToLogsOnError", one["name"]


def test_each_pods_logs_reach_its_stdout(full: Object) -> None:
    """KubeRay joins these arguments, `&&`, and `ray start`, and runs them in bash."""
    whose = {"head": "head", "gateway": "gateway", "chat": "engine chat"}
    for name in some(whose):
        assert container(every_group(full)[name])["args"] == [
            f"{{ python -m deployments.process.log_to_stdout {whose[name]} & }}"
        ]


def test_a_pod_starts_though_its_logs_cannot_be_copied(full: Object, tmp_path: Path) -> None:
    (before,) = container(head(full))["args"]
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", "-c", "--", f" {before}  && ulimit -n 1024; echo started"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "started\n"


def test_a_head_is_evicted_from_a_lost_node_soon(full: Object) -> None:
    """A new one is made when the old one has gone; Kubernetes waits for 300 s by default."""
    gone = {t["key"]: t.get("tolerationSeconds") for t in pod(head(full))["tolerations"]}
    assert gone.pop("system") is None
    assert gone == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


class TestTheAutoscalersEnd:
    """Its container is never started again: Ray's second autoscaler wants restartPolicy Never."""

    def test_a_head_whose_state_is_in_redis_has_an_exec_liveness_probe(self, full: Object) -> None:
        probe = container(head(full))["livenessProbe"]
        assert set(probe) & {"httpGet", "exec"} == {"exec"}

    def test_a_head_without_state_in_redis_has_an_http_liveness_probe(
        self, minimal: Object
    ) -> None:
        assert "httpGet" in container(head(minimal))["livenessProbe"]

    def test_the_probe_sees_the_autoscaler_of_the_pod(self, full: Object, tmp_path: Path) -> None:
        """Its shell's own command line must not be taken for it."""
        command = container(head(full))["livenessProbe"]["exec"]["command"]
        (tmp_path / "wget").write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / "wget").chmod(0o755)
        programs = f"{tmp_path}:{os.environ['PATH']}"

        def passes(*command_lines: str) -> bool:
            for pid, line in enumerate(command_lines, 1):
                (tmp_path / str(pid)).mkdir(exist_ok=True)
                (tmp_path / str(pid) / "cmdline").write_bytes(line.replace(" ", "\0").encode())
            here = [part.replace("/proc/", f"{tmp_path}/") for part in command]
            return subprocess.run(here, env={"PATH": programs}, check=False).returncode == 0

        assert not passes("/pause", " ".join(command), "gcs_server")
        assert passes("/pause", " ".join(command), "python ray kuberay-autoscaler --cluster-name x")


def test_keys_are_mounted_as_a_folder_and_no_secret_is_in_plain_text(full: Object) -> None:
    for group in some(every_group(full).values()):
        given = variables(group)
        assert given["ANTEFIX_API_KEYS_FILE"] == "/etc/antefix/auth/api-keys"
        assert container(group)["volumeMounts"][0] == {
            "name": "auth",
            "mountPath": "/etc/antefix/auth",
            "readOnly": True,
        }
        assert pod(group)["volumes"][0]["secret"]["items"] == [
            {"key": "api-keys", "path": "api-keys"}
        ]
        for name in ("ANTEFIX_ENGINE_SECRET", "ANTEFIX_REDIS_PASSWORD"):
            assert "secretKeyRef" in given[name]
        assert given["OTEL_EXPORTER_OTLP_ENDPOINT"].startswith("http://otel-collector")
        assert "ray.io/cluster" in given["ANTEFIX_CLUSTER"]["fieldRef"]["fieldPath"]
        assert given["ANTEFIX_UNHEARD_S"] == "10"


def test_existing_secrets_are_used_everywhere(existing: Object) -> None:
    given = variables(head(existing))
    assert given["ANTEFIX_ENGINE_SECRET"]["secretKeyRef"]["name"] == "llm-auth"
    assert given["ANTEFIX_REDIS_URL"]["secretKeyRef"] == {"name": "llm-redis", "key": "url"}
    assert "ANTEFIX_REDIS_PASSWORD" not in given
    assert pod(head(existing))["volumes"][0]["secret"]["secretName"] == "llm-auth"


def test_images_are_pulled_as_configured(existing: Object) -> None:
    assert re.fullmatch(
        r"registry.acme.internal/antefix-cpu@sha256:\w+", container(head(existing))["image"]
    )
    image = container(groups(existing)["chat"])["image"]
    assert image == "registry.acme.internal/vllm/antefix-gpu:0.1.0-1"
    assert pod(head(existing))["imagePullSecrets"] == [{"name": "registry"}]


def test_a_registry_is_prepended_to_both_repositories(full: Object) -> None:
    for name, group in some(every_group(full).items()):
        kind = "gpu" if name == "chat" else "cpu"
        image = container(group)["image"]
        assert image == f"registry.acme.internal:5000/llm/antefix-{kind}:0.1.0"


def test_the_laptop_values_use_local_images_and_pull_nothing() -> None:
    told = run("template", "afx", str(CHART), "--values", str(CHART / "values/laptop-kind.yaml"))
    assert set(re.findall(r"image: (\S*antefix\S*)", told)) == {"antefix/antefix-cpu:0.1.0"}
    assert set(re.findall(r"imagePullPolicy: (\w+)", told)) == {"Never"}


def test_only_a_head_with_the_autoscaler_may_talk_to_kubernetes(full: Object) -> None:
    def tokens(found: Object) -> list[str]:
        return [n for n, g in every_group(found).items() if automounts(pod(g))]

    def automounts(spec: Object) -> bool:
        return bool(spec["automountServiceAccountToken"])

    assert tokens(full) == ["head"]
    alone = {"fleet": {"name": "x", "pools": {"chat": {"model": "a/b"}}}}
    assert tokens(ray_service({**alone, "rayAutoscaler": {"enabled": False}})) == []


def test_labels_name_the_component_and_leave_kuberays_name_alone(full: Object) -> None:
    for name, group in some(every_group(full).items()):
        labels = group["template"]["metadata"]["labels"]
        assert labels["antefix/component"] == ("engine" if name == "chat" else name)
        assert labels.get("antefix/pool") == ("chat" if name == "chat" else None)
        assert labels["team"] == "llm"
        assert "app.kubernetes.io/name" not in labels
        annotations = group["template"]["metadata"]["annotations"]
        assert annotations == {"sidecar.istio.io/inject": "false"}


def test_a_new_version_that_changes_only_the_chart_changes_no_pod(full: Object) -> None:
    # only the image names the version, or every release would need a second cluster
    text = yaml.safe_dump([group["template"] for group in every_group(full).values()])
    assert "helm.sh/chart" not in text
    assert "app.kubernetes.io/version" not in text
