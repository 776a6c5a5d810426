"""The values files that ship, and those of ci/: KubeRay takes them, and Antefix takes the fleet."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.fleet.applications import fleet_of
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import load_fleet, parse_fleet
from tests.helm.crd import faults_of
from tests.helm.helm import CHART, Object, of_kind, put_on_path, render
from tests.shipped import PLANNED_FILES

ROOT = CHART.parents[1]
SHIPPED = sorted((CHART / "values").glob("*.yaml"))
FILES = [*SHIPPED, *PLANNED_FILES, *sorted((CHART / "ci").glob("*-values.yaml"))]
PASSWORD = "p@ss/word"

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def values_of(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def parsed(fleet: Any) -> Fleet:
    return parse_fleet(yaml.safe_dump(fleet), check_engine_args=False)


@pytest.fixture(scope="module")
def rendered() -> dict[Path, Object]:
    only = "templates/rayservice.yaml"
    return {file: of_kind(render(file, show_only=only), "RayService") for file in FILES}


@each_file
def test_kuberay_accepts_the_ray_service(file: Path, rendered: dict[Path, Object]) -> None:
    assert faults_of(rendered[file]) == []


@each_file
def test_the_fleet_is_a_fleet_file(file: Path) -> None:
    assert parsed(values_of(file)["fleet"]).pools


@each_file
def test_antefix_runs_the_fleet_as_it_was_written(
    file: Path, rendered: dict[Path, Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_REDIS_PASSWORD", PASSWORD)
    config = yaml.safe_load(rendered[file]["spec"]["serveConfigV2"])
    written = parsed(values_of(file)["fleet"]).model_dump()
    given = parsed(fleet_of(config)).model_dump()

    own_gateway, own_pools = given["gateway"], given["pools"]
    every = "::" if values_of(file).get("ipFamily") == "IPv6" else "0.0.0.0"
    assert (own_gateway["host"], given["metrics"]["host"]) == (every, every)
    assert own_gateway["custom"].pop("antefix-gateway") == 1
    for name, pool in own_pools.items():
        assert pool["resources"]["custom"].pop(f"antefix-pool-{name}") == 1
        assert pool["resources"].pop("gpus") is not None
        written["pools"][name]["resources"].pop("gpus")
    for fleet in (given, written):
        # the chart's to say
        fleet["gateway"].pop("links", None)
        del fleet["gateway"]["host"], fleet["gateway"]["replicas_per_node"]
        del fleet["metrics"]["host"], fleet["redis"]["url"]
    assert given == written


def test_the_gpus_of_pools_match_the_count_of_antefix(rendered: dict[Path, Object]) -> None:
    for file in FILES:
        written = parsed(values_of(file)["fleet"])
        config = yaml.safe_load(rendered[file]["spec"]["serveConfigV2"])
        for name, pool in fleet_of(config)["pools"].items():
            asked = written.pools[name].resources.gpus
            expected = written.pools[name].world_size if asked is None else asked
            assert pool["resources"]["gpus"] == expected


def test_pod_groups_match_the_replicas_that_antefix_may_request(
    rendered: dict[Path, Object],
) -> None:
    for file in FILES:
        written = parsed(values_of(file)["fleet"])
        groups = rendered[file]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        for group in groups:
            if group["groupName"] == "gateway":
                assert group["replicas"] == written.gateway.replicas
                continue
            pool = written.pools[group["groupName"]]
            assert group["replicas"] == pool.first_replicas * pool.pipeline_parallel
            assert group["maxReplicas"] >= pool.most_replicas * pool.pipeline_parallel


def test_redis_has_its_password_however_it_is_spelled(
    rendered: dict[Path, Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_REDIS_PASSWORD", PASSWORD)
    config = yaml.safe_load(rendered[FILES[0]]["spec"]["serveConfigV2"])
    fleet = parsed(fleet_of(config))
    assert fleet.redis.url == "redis://:p%40ss%2Fword@afx-antefix-redis:6379/0"


@pytest.mark.parametrize("file", [*SHIPPED, *PLANNED_FILES], ids=lambda file: file.stem)
def test_no_answer_is_interrupted_when_an_engine_stops(file: Path) -> None:
    gateway = parsed(values_of(file)["fleet"]).gateway
    assert gateway.drain_timeout_s == gateway.request_timeout_s


def test_the_multi_node_values_run_the_shipped_multi_node_fleet() -> None:
    written = parsed(values_of(CHART / "values" / "multi-node-a100.yaml")["fleet"]).model_dump()
    ships = load_fleet("a100", check_engine_args=False).model_dump()
    for fleet in (written, ships):
        del fleet["gateway"]["host"], fleet["redis"]["url"]
        for pool in fleet["pools"].values():
            del pool["resources"]["accelerator_type"]
    assert written == ships


def test_the_laptop_values_run_the_laptop_fleet() -> None:
    written = parsed(values_of(CHART / "values" / "laptop-kind.yaml")["fleet"]).model_dump()
    ships = load_fleet("laptop", check_engine_args=False).model_dump()
    for fleet in (written, ships):
        del fleet["gateway"]
        for pool in fleet["pools"].values():
            del pool["resources"]["gpus"]
    assert written == ships


@pytest.mark.parametrize("where", ["fleet", "chart"])
def test_the_cpu_decides_the_dtype_of_the_laptops_engines(where: str) -> None:
    values = values_of(CHART / "values" / "laptop-kind.yaml")["fleet"]
    fleet = parsed(values) if where == "chart" else load_fleet("laptop", check_engine_args=False)
    assert ["dtype" in pool.engine_args for pool in fleet.pools.values()] == [False, False]


def test_one_node_has_the_gpus_for_its_fleet() -> None:
    written = parsed(values_of(CHART / "values" / "single-node-a100.yaml")["fleet"])
    assert sum(pool.most_replicas * pool.world_size for pool in written.pools.values()) == 8


@pytest.mark.parametrize(
    "file", [*SHIPPED, *sorted((ROOT / "fleets").glob("*.yaml"))], ids=lambda file: file.stem
)
def test_a_shipped_fleet_enforces_the_schema_of_tool_arguments(file: Path) -> None:
    """Without it, a model may call a required tool with a text that is no object."""
    values = values_of(file)
    pools = values.get("fleet", values)["pools"].values()
    calling = [args for pool in pools if "tool_call_parser" in (args := pool["engine_args"])]
    assert calling
    assert {args.get("tool_strict_level") for args in calling} == {"parameter"}


def test_values_files_are_rendered_for_clusters_without_helm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch)
    command = ("make", "manifests", f"RENDERED={tmp_path}", "ARGS=--set image.registry=acme.test")
    subprocess.run(command, cwd=ROOT, check=True)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in SHIPPED}
    for file in SHIPPED:
        text = (tmp_path / file.name).read_text()
        kinds = {made["kind"] for made in yaml.safe_load_all(text) if made}
        assert "RayService" in kinds
        assert not kinds & {"Secret", "Pod"}  # Secrets are the operator's, and Helm runs its tests
