"""Workflows, templates and the like name what exists."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project import VIEWS, project, written
from tests.some import some

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def steps_of(workflow: dict[str, Any]) -> list[str]:
    jobs = workflow["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_ci_runs_every_check() -> None:
    assert ".ci/run" in steps_of(read(".github/workflows/ci.yaml"))


@pytest.mark.parametrize(
    ("fails", "made", "timed"),
    [
        ("nothing", ["test", "test-rest"], ["make test", "make test-all"]),
        ("test-rest", ["test", "test-rest"], ["make test", "make test-all"]),
        ("test", ["test"], ["make test"]),
    ],
)
def test_ci_runs_make_test_and_then_the_rest_and_prints_their_times(
    tmp_path: Path, fails: str, made: list[str], timed: list[str]
) -> None:
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "making $1"\n[ "$1" != {fails} ]\n')
    make.chmod(0o755)
    script = (ROOT / ".ci" / "run").read_text().replace("/proc/sys/kernel", "/no/such")
    run = tmp_path / ".ci" / "run"
    run.parent.mkdir()
    run.write_text(script)
    done = subprocess.run(
        ["bash", run],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (fails == "nothing"), done.stderr
    assert re.findall(r"^making (.*)$", done.stdout, re.M) == made
    assert re.findall(r"^(.*) took 0:\d\d\.$", done.stdout, re.M) == timed


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_page_names_both_commands_that_test(page: str) -> None:
    commands = re.findall(r"^make test(?:-all)?\b", (ROOT / page).read_text(), re.M)
    assert {*commands} == {"make test", "make test-all"}


def test_lint_checks_prose_too() -> None:
    ((files, commands),) = re.findall(r"^PROSE := (.*)\n(lint:.*\n(?:\t.*\n)+)", MAKEFILE, re.M)
    assert files == "$(wildcard tests/test_prose*.py)" and "$(PROSE)" in commands
    assert len(some((ROOT / "tests").glob("test_prose*.py"))) == 3


def test_a_release_builds_both_images_and_the_chart() -> None:
    workflow = read(".github/workflows/release.yaml")
    (images,) = re.findall(r"^IMAGES \?= (.+)$", MAKEFILE, re.M)
    assert all((ROOT / "docker" / f"{image}.Dockerfile").exists() for image in some(images.split()))
    targets = [step.split()[1] for step in steps_of(workflow) if step[:5] == "make "]
    assert all(f"\n{target}:" in MAKEFILE for target in some(targets))


def test_compose_starts_the_image_of_this_version() -> None:
    service = read("compose.yaml")["services"]["antefix"]
    assert service["image"] == f"antefix/antefix-cpu:{VERSION}"
    shown = (ROOT / "docs" / "laptop.md").read_text()
    assert " ".join(service["command"]) in shown and f"--shm-size {service['shm_size']}" in shown


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_each_issue_template_asks_at_least_one_question(name: str) -> None:
    fields = read(f".github/ISSUE_TEMPLATE/{name}.yaml")["body"]
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_hooks_and_containers_use_the_tools_of_the_repository() -> None:
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in some(local["hooks"]))
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert "bootstrap.py --dev" in container["postCreateCommand"]


@pytest.mark.parametrize("file", VIEWS)
def test_a_file_has_the_addresses_of_the_project(file: str) -> None:
    """Otherwise run `make reference`."""
    text = (ROOT / file).read_text()
    assert text == written(file)
    assert all(re.search(pattern, text) for pattern in some(VIEWS[file]))
    assert set(re.findall(r"[\w.+-]+@[\w.-]+\.\w+", text)) <= {*project().values()}


@pytest.mark.parametrize("page", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_a_page_calls_its_address_a_placeholder_exactly_while_it_is_one(page: str) -> None:
    address = project()["security" if page == "SECURITY.md" else "conduct"]
    assert ("is a placeholder" in (ROOT / page).read_text()) == address.endswith(".example")


def test_the_icon_of_the_chart_exists() -> None:
    icon = read("helm/antefix/Chart.yaml")["icon"]
    assert (ROOT / icon.partition("/raw/main/")[2]).exists()
