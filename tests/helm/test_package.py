"""The chart as `helm package` packs it for a registry."""

import tarfile
from pathlib import Path

import pytest

from tests.helm.helm import CHART, REGISTRY, run


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    run("package", str(CHART), "--destination", str(folder))
    (packed,) = folder.glob("antefix-*.tgz")
    return packed


def test_the_package_contains_every_file_except_test_values(package: Path) -> None:
    with tarfile.open(package) as archive:
        names = {name.removeprefix("antefix/") for name in archive.getnames()}
    here = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    left_out = {name for name in here if name.startswith("ci/")}
    assert left_out
    assert names == here - left_out


def test_the_package_renders_the_same_as_the_folder(package: Path) -> None:
    values = (*REGISTRY, "--values", str(CHART / "values" / "single-node-a100.yaml"))
    own = ("--set", "auth.generate=false,auth.existingSecret=a,redis.existingSecret=b")
    packed, folder = (run("template", "afx", str(c), *values, *own) for c in (package, CHART))
    assert packed == folder
