"""The images' files: what a build would copy is enough to run, and no more than that.

They are not built here: that takes a container runtime and some 15 GB.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootstrap import TORCH_CPU_INDEX
from deployments.fleet.fleet import GatewaySettings, MetricsSettings
from tests.some import some

ROOT = Path(__file__).parent.parent.parent
IMAGES = ("cpu", "gpu")
CHART = ROOT / "helm" / "antefix"

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_INCLUDED = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
PACKAGES = sorted(
    path.parent.name
    for path in ROOT.glob("*/__init__.py")
    if any(fnmatch.fnmatch(path.parent.name, pattern) for pattern in _INCLUDED)
)


def instructions(image: str) -> list[tuple[str, str]]:
    """Return each instruction of the image's file and what follows it, without comments."""
    text = (ROOT / "docker" / f"{image}.Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (name, " ".join(rest.split()))
        for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def instructions_of(image: str, instruction: str) -> list[str]:
    return [rest for name, rest in instructions(image) if name == instruction]


def environment(image: str) -> dict[str, str]:
    """Return the environment at the end of the last stage."""
    told: dict[str, str] = {}
    for name, rest in instructions(image):
        if name == "FROM":
            told = {}
        elif name == "ENV":
            told |= dict(pair.split("=", 1) for pair in rest.split())
    return told


def in_context(path: str) -> bool:
    """Whether .dockerignore lets it in: the last pattern that fits it or a folder above decides."""
    above = [path, *map(str, Path(path).parents)]
    ignored = False
    for pattern in (ROOT / ".dockerignore").read_text().splitlines():
        if not pattern or pattern.startswith("#"):
            continue
        regex = re.escape(pattern.removeprefix("!")).replace(r"\*\*/", "(.*/)?")
        regex = regex.replace(r"\*", "[^/]*")
        if any(re.fullmatch(regex, part) for part in above):
            ignored = not pattern.startswith("!")
    return not ignored


def copy_context(target: Path) -> None:
    """What `COPY .` would copy."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        of_root = Path(folder).relative_to(ROOT)
        return {name for name in names if not in_context(str(of_root / name))}

    shutil.copytree(ROOT, target, ignore=left_out)


def loaded_from(folder: Path, code: str) -> list[Path]:
    """The files of all modules of Antefix that `code`, run there, had loaded in the end."""
    told = f"""
import sys
{code}
for module in list(sys.modules.values()):
    file = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0] in {PACKAGES} and file:
        print(file, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", told], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing(image: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    file = ROOT / "docker" / f"{image}.Dockerfile"
    done = subprocess.run([hadolint, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("image", IMAGES)
def test_copied_files_exist_and_are_not_ignored(image: str) -> None:
    for copied in some(instructions_of(image, "COPY")):
        if copied.startswith("--from="):
            continue
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source == "." or in_context(source), source


def test_the_build_context_is_exactly_what_ships() -> None:
    let_in = {path.name for path in ROOT.iterdir() if in_context(path.name)}
    assert let_in == {*PACKAGES, "fleets", "helm", "requirements", "LICENSE", "pyproject.toml"}
    for path in ("deployments/__pycache__", "requirements/dev.lock", "tests/conftest.py", ".git"):
        assert not in_context(path)


def test_copied_files_are_enough_to_run(tmp_path: Path) -> None:
    copy_context(tmp_path / "antefix")
    code = """
import deployments.app, deployments.node_drain, cli.main, k8s, observability.alerts.rules
from cli.main import main
from deployments.fleet.fleet_file import load_fleet
for name in ("laptop", "a100"):
    load_fleet(name)
from observability import GENERATED
from observability.grafana import read
assert len(read()) == 5 and (GENERATED / "alertmanager.yaml").exists()
sys.argv = ["antefix", "slo", "check"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    loaded = loaded_from(tmp_path / "antefix", code)
    assert len(loaded) > 50
    assert all(path.is_relative_to(tmp_path) for path in loaded)


def test_an_engine_on_gpus_samples_without_a_compiler_of_cuda() -> None:
    """FlashInfer's sampler wants its kernels as a wheel or nvcc; vLLM takes it unless configured
    otherwise."""
    lock = (ROOT / "requirements" / "gpu.lock").read_text()
    precompiled = re.search(r"^flashinfer-jit-cache==", lock, re.M)
    assert precompiled or environment("gpu")["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_the_compiler_of_cuda_is_not_on_the_path() -> None:
    """With it vLLM would choose FlashInfer's kernels, and compile them while it starts."""
    told = environment("gpu")
    assert not {"CUDA_HOME", "CUDA_PATH"} & told.keys()
    assert "/opt/venv/cuda/bin" not in told["PATH"].split(":")


def test_the_driver_is_found_where_gke_mounts_it() -> None:
    """In the last stage: Google's device plugin mounts it and sets neither of the two."""
    told = environment("gpu")
    assert "/usr/local/nvidia/lib64" in told["LD_LIBRARY_PATH"].split(":")
    assert "/usr/local/nvidia/bin" in told["PATH"].split(":")


def test_the_stage_that_makes_the_model_copies_all_it_needs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "common", tmp_path / "common")
    shutil.copytree(ROOT / "deployments" / "models", tmp_path / "deployments" / "models")
    shutil.copy(ROOT / "deployments" / "__init__.py", tmp_path / "deployments")
    others = ("--", "requirements", "pyproject.toml", ". ")
    copied = [c.split()[:-1] for c in instructions_of("cpu", "COPY") if not c.startswith(others)]
    assert copied == [["common"], ["deployments/__init__.py"], ["deployments/models"]]
    makers = "import deployments.models.convert_gguf, deployments.models.model"
    loaded = loaded_from(tmp_path, makers)
    assert all(path.is_relative_to(tmp_path) for path in loaded)


@pytest.mark.parametrize("image", IMAGES)
def test_no_secret_is_built_in(image: str) -> None:
    names = re.compile(r"KEY|SECRET|TOKEN|PASSW|CREDENTIAL", re.I)
    for instruction in ("ARG", "ENV", "LABEL"):
        assert not [given for given in instructions_of(image, instruction) if names.search(given)]


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_runs_as_the_user_that_the_chart_sets(image: str) -> None:
    security = values()["podSecurityContext"]
    assert instructions_of(image, "USER") == [f"{security['runAsUser']}:{security['runAsGroup']}"]


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_runs_as_any_user_id_in_group_0(image: str) -> None:
    """As OpenShift does: Ray, torch and the Hub's client write below HOME and ask for a name."""
    told = environment(image)
    assert told["USER"]
    makes = next(run for run in instructions_of(image, "RUN") if "useradd" in run)
    assert f"chgrp 0 {told['HOME']} && chmod g=u {told['HOME']}" in makes


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_disables_usage_statistics(image: str) -> None:
    told = environment(image)
    assert (told["DO_NOT_TRACK"], told["RAY_USAGE_STATS_ENABLED"]) == ("1", "0")


@pytest.mark.parametrize("image", IMAGES)
def test_ports_and_health_check_are_those_of_a_fleet(image: str) -> None:
    gateway, metrics = GatewaySettings(), MetricsSettings()
    assert instructions_of(image, "EXPOSE") == [f"{gateway.port} {metrics.port}"]
    (health,) = instructions_of(image, "HEALTHCHECK")
    assert f":{gateway.port}/health/live" in health


@pytest.mark.parametrize("image", IMAGES)
def test_a_shell_can_be_the_command_of_the_image(image: str) -> None:
    """KubeRay starts Ray by `bash -c`."""
    assert not instructions_of(image, "ENTRYPOINT")


@pytest.mark.parametrize("image", IMAGES)
def test_a_change_of_our_code_repeats_no_more_than_its_compilation(image: str) -> None:
    """A builder repeats whatever follows the first thing that changed, arguments included."""
    steps = instructions(image)
    code = steps.index(("COPY", ". /opt/antefix"))
    repeated = [rest for name, rest in steps[code:] if name == "RUN"]
    assert len(repeated) == 1 and repeated[0].startswith("python -m compileall")
    changing = [rest for name, rest in steps[:code] if name in ("ARG", "LABEL")]
    assert not [rest for rest in changing if "VERSION" in rest or "REVISION" in rest]


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        (["docker", "podman", "buildah"], "docker build --file"),
        (["podman", "buildah"], "podman build --format docker --file"),
        (["buildah"], "buildah build --format docker --layers --file"),
    ],
)
@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_built_with_the_installed_builder(
    tmp_path: Path, image: str, installed: list[str], chosen: str
) -> None:
    done = make(tmp_path, f"image-{image}", installed)
    version = PROJECT["project"]["version"]
    said = " ".join(done.stdout.split())
    assert said.startswith(f"{chosen} docker/{image}.Dockerfile")
    assert f"--tag docker.io/antefix/antefix-{image}:{version} " in said


def test_another_base_is_a_variable(tmp_path: Path) -> None:
    done = make(tmp_path, "image-gpu", ["docker"], "BASE=localhost/python:3.11")
    assert "--build-arg BASE=localhost/python:3.11 " in done.stdout


@pytest.mark.parametrize(
    ("installed", "runs"),
    [("docker", "docker run --rm"), ("podman", "podman run --rm"), ("buildah", "buildah run")],
)
def test_the_gpu_image_is_checked_from_inside(tmp_path: Path, installed: str, runs: str) -> None:
    done = make(tmp_path, "check-image-gpu", [installed])
    assert f"{runs} --volume {ROOT}/tests/in_gpu_image:/check/tests/in_gpu_image:ro" in done.stdout
    assert f"antefix-gpu:{PROJECT['project']['version']}" in done.stdout
    assert "python -m tests.in_gpu_image.check" in done.stdout


def test_without_a_builder_make_lists_the_supported_ones(tmp_path: Path) -> None:
    done = make(tmp_path, "image-cpu", [])
    assert done.returncode
    assert "docker, podman and buildah are all missing: install one of them" in done.stderr


def make(
    tmp_path: Path, target: str, installed: list[str], *variables: str
) -> subprocess.CompletedProcess[str]:
    """What it would run, on a machine with these programs."""
    for name in ("sh", "sed", "git"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name in installed:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        [str(shutil.which("make")), "--dry-run", "--no-print-directory", target, *variables],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_both_images_have_one_base_with_the_same_python() -> None:
    bases = {
        tuple(given for given in instructions_of(image, "ARG") if "BASE" in given)
        for image in IMAGES
    }
    ((base,),) = bases
    python = re.fullmatch(r"BASE=python:(3\.\d+)\.\d+-slim-bookworm", base)
    assert python
    assert f"python{python[1]}/" in " ".join(instructions_of("gpu", "COPY"))


@pytest.mark.parametrize("package", ["ray", "cloudpickle", "msgspec", "pydantic", "pydantic-core"])
def test_packages_that_nodes_exchange_have_one_version_in_both_images(package: str) -> None:
    pins = {
        re.findall(rf"^{package}==(\S+)", (ROOT / f"requirements/{image}.lock").read_text(), re.M)[
            0
        ]
        for image in IMAGES
    }
    assert len(pins) == 1


def test_pytorch_comes_from_where_make_up_takes_it() -> None:
    assert f'TORCH_FROM="--index-url {TORCH_CPU_INDEX}"' in instructions_of("cpu", "ARG")
    assert any("${TORCH_FROM} -r torch.txt" in run for run in instructions_of("cpu", "RUN"))


def test_the_charts_images_are_those_of_its_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == PROJECT["project"]["version"]
    for image in IMAGES:
        set_in_values = values()["image"][image]
        assert set_in_values["repository"] == f"antefix-{image}"
        assert set_in_values["tag"] == "", "empty: the chart's appVersion"


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded
