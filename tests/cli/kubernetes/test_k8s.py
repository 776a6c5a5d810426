"""`antefix k8s` against the Kubernetes API of tests/k8s/api.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from tests.helm.helm import CHART, put_on_path
from tests.k8s.api import Api
from tests.k8s.objects import NAMESPACE, RAYSERVICES, namespace, node, operator
from tests.k8s.release_objects import ACTIVE, VALUES, ray_pod, release

FLEET = {"name": "test", "pools": {"llama": {"model": "org/model", "replicas": 2}}}
REGISTRY = {"image": {"registry": "registry.acme.internal"}}
ONE_POOL = "fleet: {name: t, pools: {a: {model: b/c}}}"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    put_on_path(monkeypatch)
    gpus = node("a100-1", 4)
    with Api(RAYSERVICES, operator(), node("cpu-1"), gpus, namespace(NAMESPACE)) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


@pytest.fixture
def values(tmp_path: Path) -> str:
    return written(tmp_path, {"fleet": FLEET, **REGISTRY})


def written(folder: Path, data: object, name: str = "values.yaml") -> str:
    file = folder / name
    file.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return str(file)


def antefix(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["k8s", *arguments])


def preflight(*arguments: str) -> Result:
    return antefix("preflight", "--no-engine-args", "-n", NAMESPACE, *arguments)


def test_a_preflight_without_problems_exits_0(api: Api, values: str) -> None:
    done = preflight("--values", values)
    assert (done.exit_code, done.stderr) == (0, "0 problems, 0 warnings\n")
    assert done.stdout.splitlines()[:2] == [
        "ok       Kubernetes: v1.34.0",
        "ok       KubeRay: quay.io/kuberay/operator:v1.5.1",
    ]


def test_a_problem_exits_1_with_its_remedy_beneath(api: Api, values: str, tmp_path: Path) -> None:
    more = written(tmp_path, {"fleet": {"pools": {"llama": {"replicas": 5}}}}, "more.yaml")
    done = preflight("--values", values, "--values", more)
    assert done.exit_code == ExitCode.FOUND
    lines = done.stdout.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("problem")]
    assert lines[at].startswith("problem  room for llama: needs 5 pods of 1 GPU")
    assert lines[at + 1].strip().startswith("-> free or add nodes")


def test_json_output_has_findings_and_placements(api: Api, values: str) -> None:
    told = json.loads(preflight("--values", values, "-o", "json").stdout)
    assert told["namespace"] == NAMESPACE
    assert {f["severity"] for f in told["findings"]} == {"ok", "note"}
    assert set(told["findings"][0]) == {"severity", "title", "seen", "remedy"}
    assert told["fit"]["groups"]["llama"] == {
        "pods": 2,
        "gpus_per_pod": 1,
        "nodes": {"a100-1": 2},
        "missing": 0,
    }
    (gpus,) = told["fit"]["gpus"]
    assert (gpus["node"], gpus["allocatable"], gpus["free"]) == ("a100-1", 4, 4)


@pytest.mark.parametrize("file", sorted(CHART.glob("values/*.yaml")), ids=lambda file: file.stem)
def test_preflight_accepts_the_default_values_of_the_chart(api: Api, file: Path) -> None:
    done = preflight("--values", str(file), "-o", "json")
    assert "error" not in json.loads(done.stdout)


def test_a_placeholder_ends_preflight_with_its_key_and_the_remedy(api: Api, values: str) -> None:
    platform = str(CHART / "values" / "platforms" / "bare-metal.yaml")
    done = preflight("--values", values, "--values", platform)
    assert done.exit_code == ExitCode.FAILED
    assert "ingress.hosts is llm.example.com, which is a placeholder: write the" in done.stderr


def test_a_fleet_file_without_values_uses_the_charts_defaults(api: Api, tmp_path: Path) -> None:
    done = preflight("--fleet", written(tmp_path, FLEET, "fleet.yaml"))
    assert done.exit_code == 0
    assert "warning  images: image.registry is empty" in done.stdout
    assert "ok       room for llama: 2 pods of 1 GPU, 8 cores, 64 GiB memory" in done.stdout


def test_an_error_of_the_fleet_names_its_path_in_the_values(api: Api, tmp_path: Path) -> None:
    wrong = {"name": "test", "pools": {"llama": {"model": "org/model", "replica": 2}}}
    file = written(tmp_path, {"fleet": wrong})
    done = preflight("--values", file)
    assert done.exit_code == 6
    assert done.stderr.startswith(
        f"Error: {file}: fleet.pools.llama.replica: unknown key\nRemedy: Did you mean"
    )


def test_a_fleet_file_replaces_the_fleet_of_the_values(
    api: Api, values: str, tmp_path: Path
) -> None:
    other = {"name": "other", "pools": {"small": {"model": "org/small"}}}
    done = preflight("--values", values, "--fleet", written(tmp_path, other, "fleet.yaml"))
    assert done.exit_code == 0
    assert "room for small" in done.stdout and "room for llama" not in done.stdout


def test_an_unset_variable_in_env_is_reported_with_the_remedy(api: Api, tmp_path: Path) -> None:
    env = {"TOKEN": "${NOT_SET_HERE}"}
    pools = {"llama": {"model": "org/model", "env": env}}
    done = preflight("--values", written(tmp_path, {"fleet": {"name": "t", "pools": pools}}))
    assert done.exit_code == ExitCode.FAILED
    assert "fleet.pools.llama.env.TOKEN is ${NOT_SET_HERE}: the chart cannot read" in done.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: [", "is not YAML"),
        ("- a", "is not a mapping"),
        ("imagePullSecrets: []", "the values contain no fleet"),
        (f"{ONE_POOL}\nrayHead: 3", "the chart rejects the values: at '/rayHead': got number"),
        (
            f"{ONE_POOL}\nredis: {{enabled: false}}\ngcsFaultTolerance: {{enabled: true}}",
            "values: redis.enabled is false, but redis.external is empty: set redis.external.url "
            "or redis.external.existingSecret, or set redis.enabled to true; "
            "gcsFaultTolerance.enabled is true: ",
        ),
        (
            f"{ONE_POOL}\nredis: {{resources: {{limits: {{memory: null}}}}}}",
            "values: redis.resources.limits.memory is not set: ",
        ),
    ],
)
def test_unusable_values_are_one_error(api: Api, tmp_path: Path, text: str, message: str) -> None:
    done = preflight("--values", written(tmp_path, text))
    assert done.exit_code == ExitCode.FAILED
    assert message in done.stderr and done.stderr.count("\n") == 2


def test_without_helm_its_remedy_is_named(
    api: Api, values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = preflight("--values", values)
    assert done.exit_code == ExitCode.FAILED
    assert done.stderr.startswith("Error: helm, which renders the chart, is not on PATH\nRemedy: ")


def test_preflight_without_a_fleet_is_a_usage_error(api: Api) -> None:
    assert preflight().exit_code == 2


def test_a_missing_cluster_configuration_is_one_clear_error(
    values: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch)
    missing = preflight("--values", values, "--kubeconfig", str(tmp_path / "none"))
    assert missing.exit_code == ExitCode.FAILED
    assert (
        missing.stderr.startswith("Error: no cluster is configured: ")
        and missing.stderr.count("\n") == 2
    )


def test_an_unknown_context_is_one_clear_error(api: Api, values: str) -> None:
    done = preflight("--values", values, "--context", "other")
    assert done.exit_code == ExitCode.FAILED
    assert "other" in done.stderr and done.stderr.count("\n") == 2


def test_an_unreachable_cluster_is_one_clear_error(api: Api, values: str) -> None:
    api.away = True
    done = preflight("--values", values)
    assert done.exit_code == ExitCode.FAILED
    assert f"the cluster at {api.url} does not answer" in done.stderr
    assert done.stderr.count("\n") == 2


def test_status_without_a_release_exits_3(api: Api) -> None:
    done = antefix("status", "-n", NAMESPACE)
    assert (done.exit_code, done.stderr) == (
        3,
        "Error: namespace llm has no release of Antefix\n"
        "Remedy: helm list -A shows its namespace\n",
    )


def test_status_shows_the_parts_of_a_release_and_why_one_is_not_ready(api: Api) -> None:
    api.add(*release())
    done = antefix("status", "-n", NAMESPACE)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "afx-antefix in llm: ready",
        "  Ready True (NonZeroServeEndpoints)",
        "active cluster: afx-antefix-a",
        "  head: 1 of 1 ready on a100-1",
        "  gateway: 1 of 1 ready on a100-1",
        "  llama: 1 of 1 ready on a100-1",
        "gateways that accept requests: 1",
        "  redis: 1 of 1 ready on cpu-1",
        "  warm-nodes: 1 of 1 ready on cpu-1",
        "warm nodes of llama: 0 of 0",
    ]
    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "message": message}
    status = {"phase": "Pending", "conditions": [unscheduled]}
    api.add(ray_pod("llama-0", ACTIVE, "llama", status=status, on=""))
    done = antefix("status", "-n", NAMESPACE, "afx")
    assert done.exit_code == 5
    assert "  llama: 0 of 1 ready\n    llama-0: 0/2 nodes are available" in done.stdout
    told = json.loads(antefix("status", "-n", NAMESPACE, "-o", "json").stdout)
    assert told["is_ready"] is False
    assert [group["name"] for group in told["groups"]] == ["head", "gateway", "llama"]


def test_status_waits_until_the_release_is_ready_or_the_timeout_passes(api: Api) -> None:
    api.add(*release())
    assert antefix("status", "-n", NAMESPACE, "--wait").exit_code == ExitCode.OK
    api.remove("Pod", "gateway", NAMESPACE)
    done = antefix("status", "-n", NAMESPACE, "--wait", "--timeout", "10ms")
    assert done.exit_code == ExitCode.NOT_READY
    assert "not ready" in done.stdout


def test_a_namespace_without_permission_is_one_clear_error(api: Api) -> None:
    api.forbid("list", "rayservices")
    done = antefix("status", "-n", NAMESPACE)
    assert done.exit_code == ExitCode.FAILED
    assert done.stderr == (
        "Error: these credentials may not list rayservices in namespace llm\n"
        "Remedy: ask an administrator for permission to list rayservices\n"
    )


def test_the_command_line_does_not_import_the_kubernetes_client() -> None:
    code = "import sys, cli.main; print([m for m in ('kubernetes',) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_diff_shows_what_an_upgrade_changes_and_which_gpus_it_needs(
    api: Api, tmp_path: Path
) -> None:
    api.add(*release())
    same = released_values(tmp_path)
    done = antefix("diff", "-n", NAMESPACE, "--values", same)
    assert (done.exit_code, done.stdout) == (
        0,
        f"afx-antefix in llm, cluster {ACTIVE}\npods and fleet stay unchanged\n",
    )
    tag = written(tmp_path, {"image": {"cpu": {"tag": "0.2.0"}}}, "tag.yaml")
    done = antefix("diff", "afx", "-n", NAMESPACE, "--values", same, "--values", tag)
    assert done.exit_code == ExitCode.FOUND
    told = done.stdout.splitlines()
    assert told[1] == "starts a second cluster with new pods, moves to it, and stops this one:"
    assert "  pods of head: containers.ray-head.image: " in told[2]
    assert told[-1] == "GPUs: 0 now, 1 while both clusters run, 1 right after the switch"
    done = antefix("diff", "-n", NAMESPACE, "--values", same, "--values", tag, "-o", "json")
    assert json.loads(done.stdout)["second_cluster"] is True


def test_a_diff_accepts_single_values_like_helm(api: Api, tmp_path: Path) -> None:
    api.add(*release())
    sets = ("--set-string", "image.cpu.tag=1", "--set", "fleet.log_level=debug")
    same = released_values(tmp_path)
    done = antefix("diff", "afx", "-n", NAMESPACE, "--values", same, *sets, "-o", "json")
    told = json.loads(done.stdout)
    assert {change["new"].rpartition(":")[2] for change in told["pods"]} == {"1"}
    assert [(change["path"], change["new"]) for change in told["hot"]] == [
        ("fleet.log_level", "debug")
    ]
    wrong = antefix("diff", "-n", NAMESPACE, "--values", same, "--set", "fleet.nam=x")
    assert wrong.stderr.startswith(
        "Error: the values: fleet.nam: unknown key\nRemedy: Did you mean"
    )


def test_a_diff_needs_a_release_and_all_of_its_values(
    api: Api, values: str, tmp_path: Path
) -> None:
    assert antefix("diff", "-n", NAMESPACE, "--values", values).exit_code == 3
    api.add(*release())
    done = antefix("diff", "-n", NAMESPACE, "--values", written(tmp_path, ONE_POOL))
    assert done.exit_code == ExitCode.FAILED
    assert done.stderr.startswith(
        "Error: image.registry is empty in these values\nRemedy: pass all values of the release"
    )


def test_a_diff_without_permission_names_the_forbidden_resource(api: Api, tmp_path: Path) -> None:
    api.add(*release())
    api.forbid("list", "rayservices")
    done = antefix("diff", "-n", NAMESPACE, "--values", released_values(tmp_path))
    assert (done.exit_code, done.stderr) == (
        ExitCode.FAILED,
        "Error: these credentials may not list rayservices in namespace llm\n"
        "Remedy: ask an administrator for permission to list rayservices\n",
    )


def released_values(folder: Path) -> str:
    """Those of tests/k8s/release_objects.py, which has its images from tests/helm/registry.yaml."""
    registry = {"registry": "registry.acme.internal"}
    return written(folder, {**VALUES, "image": registry}, "released.yaml")
