"""The images of `make release`: built by whichever tool is installed, and saved as OCI archives."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

import release
from tests.docker.test_images import PROJECT, ROOT

VERSION = PROJECT["project"]["version"]
ARCHIVE = f"antefix-{VERSION}-cpu.oci.tar"
TAG = f"docker.io/antefix/antefix-cpu:{VERSION}"
# What the CPU image's file runs from its base, and what its packages leave for it to remove.
STAND_INS = ("apt-get", "groupadd", "useradd", "pip", "python")
LEFT = (
    *("kubernetes/aio", "ray/jars", "torch/test", "torch/bin/test_api", "torch/bin/cppTest"),
    *("matplotlib", "numba", "numpy", "sympy"),
)


def make(
    tmp_path: Path, target: str, programs: dict[str, str], *variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a target on a machine with only these programs, each given as the shell script it is."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("sh", "sed", "git"):
        (path / name).symlink_to(str(shutil.which(name)))
    for name, script in programs.items():
        (path / name).write_text(f"#!/bin/sh\n{script}\n")
        (path / name).chmod(0o755)
    return subprocess.run(
        [str(shutil.which("make")), "--no-print-directory", target, *variables],
        cwd=ROOT,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("builder", "saves"),
    [
        ("docker", "docker save --output {file} {tag}"),
        ("podman", "podman save --format oci-archive --output {file} {tag}"),
        ("buildah", "buildah push --quiet {tag} oci-archive:{file}:{tag}"),
    ],
)
def test_an_image_is_saved_in_the_release_folder_as_an_oci_archive(
    tmp_path: Path, builder: str, saves: str
) -> None:
    says = {builder: f'echo {builder} "$@"'}
    done = make(tmp_path, "release-images", says, "IMAGES=cpu", f"RELEASE={tmp_path}")
    built, saved = done.stdout.splitlines()
    assert built.startswith(f"{builder} build ")
    assert saved == saves.format(file=tmp_path / ARCHIVE, tag=TAG)


def test_a_release_without_a_builder_fails_before_it_builds_anything(tmp_path: Path) -> None:
    done = make(tmp_path, "release", {"python3": "echo runs"})
    assert done.returncode and not done.stdout
    assert "docker, podman and buildah are all missing: install one of them, or run" in done.stderr
    assert '"make release IMAGES=", which leaves out the images' in done.stderr


def test_a_release_without_images_needs_no_builder(tmp_path: Path) -> None:
    done = make(tmp_path, "release", {"python3": "echo runs; exit 1"}, "IMAGES=")
    assert done.stdout == "runs\n" and "missing" not in done.stderr
    assert make(tmp_path / "bin", "release-images", {}, "IMAGES=").returncode == 0


@pytest.mark.parametrize("fails", ["build", "save"])
def test_an_image_that_cannot_be_built_or_saved_ends_the_release(
    tmp_path: Path, fails: str
) -> None:
    programs = {"podman": f'echo podman $1; [ "$1" != {fails} ]'}
    done = make(tmp_path, "release-images", programs, f"RELEASE={tmp_path}")
    assert done.returncode
    assert done.stdout.splitlines()[-1] == f"podman {fails}"
    assert "Error: podman did not build and save the cpu image" in done.stderr
    for remedy in ("BUILDER=", "BASE=", "IMAGES="):
        assert remedy in done.stderr


@pytest.fixture
def buildah(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its path. It keeps images below `tmp_path`: those of this machine stay as they are."""
    found = shutil.which("buildah")
    if found is None:
        pytest.skip(
            "buildah is not installed (on Debian or Ubuntu, as root: apt-get install buildah)"
        )
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("buildah may not mount here: run as root, outside of containers")
    storage = tmp_path / "storage.conf"
    storage.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/images"\nrunroot = "{tmp_path}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage))
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    return found


def stand_in_for_the_base(buildah: str, folder: Path) -> str:
    """Make an image whose programs are this machine's, and do nothing where they would install.
    Return its name."""
    root = folder / "base"
    for name in STAND_INS:
        program = root / "stand-ins" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (root / "home/antefix").mkdir(parents=True)
    for name in LEFT:
        (root / "opt/venv/lib/python3.11/site-packages" / name).mkdir(parents=True)
    (root / "opt/models").mkdir()
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    file = folder / "Dockerfile"
    file.write_text("FROM scratch\nCOPY base /\nENV PATH=/stand-ins:/usr/bin\n")
    name = "localhost/stand-in"
    subprocess.run([buildah, "build", "--quiet", "--file", file, "--tag", name, folder], check=True)
    return name


@pytest.mark.real
def test_buildah_builds_an_image_that_the_checksums_of_a_release_cover(
    buildah: str, tmp_path: Path
) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    base = stand_in_for_the_base(buildah, tmp_path)
    variables = ("IMAGES=cpu", f"BUILDER={buildah}", f"BASE={base}", f"RELEASE={folder}")
    done = subprocess.run(
        [
            "make",
            "--silent",
            "release-images",
            *variables,
            "ARGS=--layers=false --volume /usr:/usr:ro",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert release.of_another_format(folder) == []
    sums = folder / release.CHECKSUMS
    sums.write_text(release.checksums(folder))
    assert sums.read_text().endswith(f"  {ARCHIVE}\n")
    subprocess.run(["sha256sum", "--check", "--quiet", sums.name], cwd=folder, check=True)
    image = configuration(folder / ARCHIVE)
    assert image["User"] == "1000:1000"
    assert image["Labels"]["org.opencontainers.image.version"] == VERSION


def configuration(archive: Path) -> dict[str, Any]:
    """Return the configuration of the only image of an OCI archive."""
    with tarfile.open(archive) as tar:

        def read(name: str) -> Any:
            file = tar.extractfile(name)
            assert file
            return json.load(file)

        (listed,) = read("index.json")["manifests"]
        manifest = read("blobs/" + listed["digest"].replace(":", "/"))
        found: dict[str, Any] = read("blobs/" + manifest["config"]["digest"].replace(":", "/"))
    return dict(found["config"])
