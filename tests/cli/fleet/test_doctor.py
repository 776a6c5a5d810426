"""`antefix doctor` on machines that lack something."""

import json
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.fleet.doctor import GIB, NIXL_VERSION, findings, host_tier_findings, nixl_findings
from cli.local.machine_facts import MachineFacts, other_versions
from cli.main import app
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet
from tests.house import ROOT

GOOD = MachineFacts(
    missing_packages=(),
    other_versions=(),
    nixl=(),
    cpu_build=True,
    has_libnuma=True,
    bfloat16="amx_bf16",
    disk_free=100 * GIB,
    memory_available=16 * GIB,
    shared_memory=8 * GIB,
    shared_memory_free=8 * GIB,
    open_files=65536,
    taken=(),
    programs=("helm",),
    drivers=(),
)


def test_doctor_finds_no_problem_on_a_suitable_machine() -> None:
    assert {finding.severity for finding in findings(GOOD)} == {"ok", "note"}


@pytest.mark.parametrize(
    ("change", "severity", "title", "said"),
    [
        ({"has_libnuma": False}, "problem", "vLLM for CPUs", "libnuma1"),
        ({"memory_available": 4 * GIB}, "warning", "memory", "needs 11 GiB"),
        ({"disk_free": GIB}, "warning", "disk", "needs 5 GiB"),
        ({"shared_memory": 64 * 2**20}, "warning", "shared memory", "needs 2 GiB"),
        ({"open_files": 1024}, "warning", "open files", "1024"),
        ({"taken": (8000,)}, "warning", "port 8000", "--port 0"),
        ({"missing_packages": ("vllm",)}, "note", "packages", "vllm not installed"),
        ({"other_versions": ("a 1 (pinned: 2)",)}, "warning", "packages", "a 1 (pinned: 2)"),
        ({"other_versions": tuple("abcdefg")}, "warning", "packages", "e, and 2 more"),
        ({"cpu_build": False}, "problem", "GPU driver", "no GPU"),
        ({"cpu_build": False, "drivers": ("570.86.15",)}, "problem", "GPU driver", "580"),
        ({"cpu_build": False, "drivers": ("590.1",)}, "ok", "GPU driver", "590.1"),
    ],
)
def test_each_missing_requirement_is_reported_with_its_remedy(
    change: dict[str, Any], severity: str, title: str, said: str
) -> None:
    (found,) = [one for one in findings(replace(GOOD, **change)) if one.title == title]
    assert found.severity == severity
    assert said in f"{found.seen} {found.remedy}"


def test_installed_versions_are_compared_with_those_of_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.lock"
    assert list(other_versions(lock)) == []
    pytest_version, numpy_version = version("pytest"), version("numpy")
    lock.write_text(
        "# pytest==0\n"
        "nothing-here==1.0 \\\n    --hash=sha256:0\n"
        f"pytest=={pytest_version} \\\n    --hash=sha256:0\n"
        f"numpy==0.1 ; python_version < '3' \\\nnumpy=={numpy_version} ; python_version > '3' \\\n"
        "aiohttp==0.2 \\\n    --hash=sha256:0\n"
    )
    assert list(other_versions(lock)) == [f"aiohttp {version('aiohttp')} (pinned: 0.2)"]


def test_memory_is_not_judged_while_a_fleet_uses_it() -> None:
    titles = [one.title for one in findings(replace(GOOD, memory_available=0), running=True)]
    assert "memory" not in titles


def fleet_file(kv_tiers: str) -> str:
    return f"name: tiers\npools: {{main: {{model: embedded, replicas: 2, kv_tiers: {kv_tiers}}}}}\n"


def tiered(host_bytes: str) -> Fleet:
    """A fleet with two replicas, each with a host tier of this size."""
    return parse_fleet(fleet_file(f"{{host_bytes: {host_bytes}}}"), check_engine_args=False)


def test_a_fleet_without_host_tiers_needs_no_memory_for_them() -> None:
    fleet = parse_fleet(fleet_file("null"), check_engine_args=False)
    assert list(host_tier_findings(replace(GOOD, shared_memory_free=0), fleet)) == []


@pytest.mark.parametrize(
    ("host_bytes", "severities", "words"),
    [
        ("2Gi", ("ok", "ok"), ""),
        # with 2 GiB of Ray's object store
        ("4Gi", ("ok", "problem"), "needs 10 GiB; enlarge /dev/shm; in a container, pass"),
        ("4Gi", ("ok", "problem"), "--shm-size 10g"),
        ("16Gi", ("problem", "problem"), "needs 32 GiB; lower kv_tiers.host_bytes"),
        ("16Gi", ("problem", "problem"), "the number of replicas of main"),
    ],
)
def test_host_tiers_of_all_replicas_must_fit_into_free_and_into_shared_memory(
    host_bytes: str, severities: tuple[str, ...], words: str
) -> None:
    found = list(host_tier_findings(GOOD, tiered(host_bytes)))
    assert [one.title for one in found] == ["memory of host tiers", "shared memory of host tiers"]
    assert tuple(one.severity for one in found) == severities
    assert words in " ".join(f"{one.seen}; {one.remedy}" for one in found)


PEERS = parse_fleet(fleet_file("{host_bytes: 1Gi, peers: true}"), check_engine_args=False)
WITH_GPU = replace(GOOD, cpu_build=False)


@pytest.mark.parametrize(
    ("machine", "installed", "missing", "libraries"),
    [
        (GOOD, (), "nixl and nixl_cu12 not", "nixl-cu12"),
        (GOOD, ("nixl_cu13",), "nixl not", "nixl-cu13"),
        (GOOD, ("nixl",), "nixl_cu12 not", "nixl-cu12"),
        # PyTorch's CUDA is 13
        (WITH_GPU, ("nixl", "nixl_cu12"), "nixl_cu13 not", "nixl-cu13"),
    ],
)
def test_a_fleet_with_peers_needs_nixl(
    machine: MachineFacts, installed: tuple[str, ...], missing: str, libraries: str
) -> None:
    (found,) = nixl_findings(replace(machine, nixl=installed), PEERS)
    assert (found.severity, found.seen.startswith(missing)) == ("problem", True)
    assert found.remedy == f"pip install --no-deps nixl=={NIXL_VERSION} {libraries}=={NIXL_VERSION}"


@pytest.mark.parametrize(
    ("machine", "library"),
    [(GOOD, "nixl_cu12"), (GOOD, "nixl_cu13"), (WITH_GPU, "nixl_cu13")],
)
def test_nixl_may_be_for_any_cuda_that_pytorch_does_not_contradict(
    machine: MachineFacts, library: str
) -> None:
    (found,) = nixl_findings(replace(machine, nixl=("nixl", library)), PEERS)
    assert (found.severity, found.seen) == ("ok", f"nixl and {library} are installed")


def test_only_machines_that_run_a_fleet_with_peers_need_nixl() -> None:
    assert not [*nixl_findings(GOOD, tiered("1Gi"))]
    assert not [*nixl_findings(replace(GOOD, missing_packages=("vllm",)), PEERS)]


@pytest.mark.parametrize("name", ["dev", "gpu"])
def test_the_remedy_installs_the_locked_nixl(name: str) -> None:
    lock = (ROOT / f"requirements/{name}.lock").read_text()
    pins = re.findall(r"^nixl\S*==(\S+)", lock, re.M)
    assert pins == [NIXL_VERSION] * 2


def test_the_command_checks_nixl_for_a_fleet_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path))
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet_file("{host_bytes: 1Gi, peers: true}"))
    done = CliRunner().invoke(app, ["doctor", str(file), "-o", "json"])
    assert "NIXL" in [one["title"] for one in json.loads(done.stdout)["findings"]]


def test_the_command_checks_the_host_tiers_of_a_fleet_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path))
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet_file("{host_bytes: 1PiB}"))
    done = CliRunner().invoke(app, ["doctor", str(file), "-o", "json"])
    found = {one["title"]: one["severity"] for one in json.loads(done.stdout)["findings"]}
    assert found["shared memory of host tiers"] == found["memory of host tiers"] == "problem"
    assert done.exit_code == ExitCode.FOUND


def test_the_command_prints_versions_and_findings(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["doctor", "-o", "json"])
    said = json.loads(done.stdout)
    assert said["version"].startswith("antefix ")
    fleet = next(one for one in said["findings"] if one["title"] == "fleet")
    assert fleet["seen"] == "no fleet is running here"
