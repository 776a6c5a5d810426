"""An install without vLLM and Ray, for those who only operate a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bootstrap
from cli.common.exit_codes import ExitCode
from tests.cli.fake_gateway import KEY, running
from tests.helm.helm import helm
from tests.missing import missing

ROOT = Path(bootstrap.__file__).parent
NOT_COPIED = shutil.ignore_patterns(".*", "docs", "tests", "build", "__pycache__", "*.egg-info")
MOST_BYTES = 200_000_000
A100 = ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "--gpu", "a100-80g")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `uv tool install` makes of the wheel, at the pinned versions of what it needs."""
    folder = tmp_path_factory.mktemp("light")
    # setuptools leaves its files in the source
    shutil.copytree(ROOT, folder / "source", ignore=NOT_COPIED)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")
        environment.setenv("UV_TOOL_DIR", str(folder / "tools"))
        environment.setenv("UV_TOOL_BIN_DIR", str(folder / "bin"))
        options = bootstrap.follow_pip()
        uv, lock = bootstrap.UV, ROOT / "requirements/cpu.lock"
        build = [
            uv,
            "build",
            "--quiet",
            "--wheel",
            "--out-dir",
            str(folder),
            str(folder / "source"),
        ]
        subprocess.run([*build, *options], check=True)
        (wheel,) = folder.glob("antefix-*.whl")
        install = [uv, "tool", "install", "--quiet", "--python", sys.executable, *options]
        done = subprocess.run(
            [*install, "--constraints", str(lock), str(wheel)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        missing(f"the packages cannot be installed: {done.stderr[-2000:]}")
    return folder / "tools" / "antefix"


def antefix(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(helm()).parent), os.environ["PATH"]])
    return subprocess.run(
        [installed / "bin/antefix", *words],
        env={**os.environ, "PATH": path, "ANTEFIX_HOME": str(installed), "KUBECONFIG": "/nowhere"},
        cwd=installed,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_light_install_is_small(installed: Path) -> None:
    files = (path for path in installed.rglob("*") if path.is_file() and not path.is_symlink())
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert not list(installed.glob("lib/*/site-packages/ray"))


def test_a_light_install_contains_only_the_product(installed: Path) -> None:
    (packages,) = installed.glob("lib/*/site-packages")
    assert (packages / "deployments").is_dir()
    assert not (packages / "benchmarks").exists() and not (packages / "tests").exists()


def test_helm_renders_the_chart_of_a_light_install(installed: Path) -> None:
    chart = Path(antefix(installed, "k8s", "chart").stdout.strip())
    assert chart.is_relative_to(installed.resolve())
    values = chart / "values" / "single-node-a100.yaml"
    registry = ("--set", "image.registry=registry.acme.test")
    done = subprocess.run(
        [helm(), "template", "antefix", chart, "--values", values, *registry],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "kind: RayService" in done.stdout, done.stderr
    preflight = antefix(installed, "k8s", "preflight", "--values", str(values), *registry)
    assert "kubeconfig" in preflight.stderr.lower(), preflight.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("config", "check", "a100"),
        ("plan", *A100, "--context-tokens", "8192", "--concurrency", "8"),
        ("slo", "check"),
        ("--version",),
        ("doctor",),
    ],
)
def test_commands_without_a_fleet_work(installed: Path, words: tuple[str, ...]) -> None:
    done = antefix(installed, *words)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("chat", "Where?"), "Paris."),
        (("bench", "short", "--rate", "2", "--duration", "2s"), "TTFT"),
        (("status",), "abc"),
    ],
    ids=["chat", "bench", "status"],
)
def test_commands_of_a_client_work(
    installed: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running() as gateway:
        done = antefix(installed, *words, "--base-url", gateway.base_url)
    assert done.returncode == ExitCode.OK, done.stderr
    assert says in done.stdout


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (("backtest", "--duration", "60"), "ray"),
        (("bench", "--base-url", "http://127.0.0.1:9/v1", "--html", "bench.html"), "matplotlib"),
    ],
    ids=["backtest", "bench"],
)
def test_a_command_that_needs_another_package_names_the_extra_that_has_it(
    installed: Path, words: tuple[str, ...], package: str
) -> None:
    done = antefix(installed, *words)
    assert done.returncode == ExitCode.FAILED
    assert f"needs the package {package}" in done.stderr
    assert "pip install '.[cpu]'" in done.stderr


def test_commands_that_need_a_fleet_name_the_packages_to_install(installed: Path) -> None:
    done = antefix(installed, "up")
    assert done.returncode == ExitCode.FAILED
    assert "ray and vllm not installed here" in done.stderr
    assert "make up" in done.stderr
