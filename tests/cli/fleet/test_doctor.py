"""`antefix doctor` on machines that lack something."""

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.fleet.doctor import GIB, findings
from cli.local.machine_facts import MachineFacts, other_versions
from cli.main import app

GOOD = MachineFacts(
    missing_packages=(),
    other_versions=(),
    cpu_build=True,
    has_libnuma=True,
    bfloat16="amx_bf16",
    disk_free=100 * GIB,
    memory_available=16 * GIB,
    shared_memory=8 * GIB,
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


def test_the_command_prints_versions_and_findings(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["doctor", "-o", "json"])
    said = json.loads(done.stdout)
    assert said["version"].startswith("antefix ")
    fleet = next(one for one in said["findings"] if one["title"] == "fleet")
    assert fleet["seen"] == "no fleet runs here"
