"""GitHub's workflows, which have no place to run yet: what their steps need and make."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project import project
from tests.some import some

ROOT = Path(__file__).parent.parent
WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text())
    for file in some((ROOT / ".github" / "workflows").glob("*.yaml"))
}
JOBS = {
    f"{name}-{job}": of["steps"]
    for name, workflow in WORKFLOWS.items()
    for job, of in workflow["jobs"].items()
}
CHART = yaml.safe_load((ROOT / "helm" / "antefix" / "Chart.yaml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
INSTALLED = ".venv/bin/"


def recipe(target: str) -> str:
    """Of the Makefile's target, after those of its prerequisites. `make --dry-run` would run lines
    with $(MAKE)."""
    found = re.search(
        rf"^{target}:([a-z -]*)(?:##.*)?\n((?:(?:\t|ifeq|ifneq|else|endif).*\n)*)", MAKEFILE, re.M
    )
    assert found, f"the Makefile has no target {target}"
    before = [recipe(prerequisite) for prerequisite in found[1].split()]
    return "".join([*before, found[2].replace("$(BIN)/", INSTALLED)])


def commands(steps: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the commands of a job, with those of the Makefile's targets."""
    for run in (step["run"] for step in steps if "run" in step):
        yield run
        script = (ROOT / run).read_text() if run.startswith(".ci/") else run
        yield from (recipe(target) for target in re.findall(r"^make ([a-z-]+)$", script, re.M))


@pytest.mark.parametrize("job", JOBS)
def test_a_job_installs_what_its_commands_use(job: str) -> None:
    script = "\n".join(commands(JOBS[job]))
    before = script.partition(INSTALLED)[0]
    assert INSTALLED not in script or "bootstrap.py" in before
    # linters and tests are in no other set of packages
    assert "-m pytest" not in script or "bootstrap.py --dev" in before


def release_step(name: str) -> dict[str, Any]:
    """The one step of the release that has this in its `run` or `uses`."""
    step: dict[str, Any]
    (step,) = (
        step for step in JOBS["release-release"] if name in step.get("run", step.get("uses", ""))
    )
    return step


def test_images_have_the_tag_that_the_chart_looks_for(tmp_path: Path) -> None:
    """The step that derives it runs here."""
    found = tmp_path / "environment"
    environment = {
        **os.environ,
        "GITHUB_REF_NAME": f"v{CHART['version']}",
        "GITHUB_ENV": str(found),
    }
    step = release_step("GITHUB_ENV")["run"]
    subprocess.run(["bash", "-c", step], cwd=ROOT, env=environment, check=True)
    variables = dict(line.split("=", 1) for line in found.read_text().splitlines())
    assert variables == {"VERSION": CHART["appVersion"], "REGISTRY": project()["registry"]}


@pytest.mark.parametrize(("version", "ends"), [(CHART["appVersion"], 0), ("9.9.9", 1)])
def test_a_tag_of_another_version_than_the_charts_is_refused(version: str, ends: int) -> None:
    step = release_step("appVersion")["run"]
    environment = {**os.environ, "VERSION": version}
    done = subprocess.run(["bash", "-c", step], cwd=ROOT, env=environment, check=False)
    assert done.returncode == ends


def test_the_images_that_are_pushed_are_the_archives_of_the_release(tmp_path: Path) -> None:
    """The step runs here, with programs that print what they are given."""
    scripts = {
        "skopeo": 'echo "sha256:0" > "$3"; echo "$4 $5"',
        "cosign": 'echo "$1 $(for last; do :; done; echo "$last")"',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "VERSION": "0.1.0",
        "REGISTRY": "registry.acme.io/antefix",
        "RUNNER_TEMP": str(tmp_path),
    }
    step = ["bash", "-e", "-c", release_step("skopeo copy")["run"]]
    said = subprocess.check_output(step, env=environment, text=True).splitlines()
    assert said == [
        line
        for image in ("cpu", "gpu")
        for to in (f"registry.acme.io/antefix/antefix-{image}",)
        for line in (
            f"oci-archive:build/release/antefix-0.1.0-{image}.oci.tar docker://{to}:0.1.0",
            f"sign {to}@sha256:0",
            f"attest {to}@sha256:0",
        )
    ]
    assert "$(RELEASE)/antefix-$(VERSION)-$$image.oci.tar" in recipe("release-images")


def test_a_release_publishes_the_files_that_make_release_builds() -> None:
    assert release_step("make release")["run"] == "make release"
    assert "release.py check" in release_step("release.py")["run"]
    assert release_step("upload-artifact")["with"]["path"] == "build/release"
    assert "chart-package wheel release-images" in recipe("release")
    assert '"oci://$REGISTRY/charts"' in release_step("helm push")["run"]
