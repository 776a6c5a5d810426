"""Workflows, templates and the like name what exists."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.some import some

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# Addresses that do not exist yet; replace them before the first release.
PLACEHOLDERS = {
    "SECURITY.md": "security@antefix.example",
    "CODE_OF_CONDUCT.md": "conduct@antefix.example",
    "mkdocs.yml": "https://example.com/antefix",
}


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def steps_of(workflow: dict[str, Any]) -> list[str]:
    jobs = workflow["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_ci_runs_every_check() -> None:
    assert ".ci/run" in steps_of(read(".github/workflows/ci.yaml"))


def test_lint_checks_prose_too() -> None:
    ((files, commands),) = re.findall(r"^PROSE := (.*)\n(lint:.*\n(?:\t.*\n)+)", MAKEFILE, re.M)
    assert files == "$(wildcard tests/test_prose*.py)" and "$(PROSE)" in commands
    assert len(some((ROOT / "tests").glob("test_prose*.py"))) == 3


def test_a_rule_of_commits_names_no_number_that_nothing_checks() -> None:
    commits = (ROOT / "CONTRIBUTING.md").read_text().partition("## Commits")[2].partition("## ")[0]
    assert "subject" in commits and not re.search(r"\d+ characters", commits)


def test_a_release_builds_both_images_and_the_chart() -> None:
    workflow = read(".github/workflows/release.yaml")
    images = workflow["jobs"]["images"]["strategy"]["matrix"]["image"]
    assert all((ROOT / "docker" / f"{image}.Dockerfile").exists() for image in some(images))
    targets = [step.removeprefix("make ") for step in steps_of(workflow) if step[:5] == "make "]
    assert all(f"\n{target}:" in MAKEFILE for target in some(targets))


def test_compose_starts_the_image_of_this_version() -> None:
    service = read("compose.yaml")["services"]["antefix"]
    assert service["image"] == f"antefix/antefix-cpu:{VERSION}"
    shown = (ROOT / "docs" / "laptop.md").read_text()
    assert " ".join(service["command"]) in shown and f"--shm-size {service['shm_size']}" in shown


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_template_of_issues_asks_something(name: str) -> None:
    fields = read(f".github/ISSUE_TEMPLATE/{name}.yaml")["body"]
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_hooks_and_containers_use_the_tools_of_the_repository() -> None:
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in some(local["hooks"]))
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert "bootstrap.py --dev" in container["postCreateCommand"]


@pytest.mark.parametrize(("page", "address"), PLACEHOLDERS.items())
def test_an_address_that_does_not_exist_is_known_as_a_placeholder(page: str, address: str) -> None:
    text = (ROOT / page).read_text()
    assert address in text
    assert set(re.findall(r"[\w.]+@[\w.]+\.\w+", text)) <= {address}
