"""What `make release` refuses, and the files that it adds to a release."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path

import pytest

import release


@pytest.mark.parametrize(
    ("address", "is_placeholder"),
    [
        ("registry.example.com/antefix", True),
        ("security@antefix.example", True),
        ("https://git.invalid/antefix", True),
        ("registry.acme.io/antefix", False),
        ("security@examples.org", False),
    ],
)
def test_a_placeholder_is_refused(address: str, is_placeholder: bool) -> None:
    faults = release.placeholders({"registry": address})
    assert [fault.partition(",")[0] for fault in faults] == [
        f"registry is {address}"
    ] * is_placeholder


def test_every_address_of_the_project_is_checked() -> None:
    assert release.addresses().keys() == {"registry", "security", "conduct", "home"}


def test_the_release_notes_are_the_changelog_section_of_their_version() -> None:
    changelog = "# Changelog\n\n## [0.2.0] - 2027\n\nNew.\n\n## [0.1.0] - 2026\n\nFirst.\n"
    assert release.notes("0.2.0", changelog) == "## [0.2.0] - 2027\n\nNew.\n"
    assert release.notes("0.1.0", changelog) == "## [0.1.0] - 2026\n\nFirst.\n"
    with pytest.raises(ValueError, match=r"no section \[0.3.0\]. Add one."):
        release.notes("0.3.0", changelog)


def test_checksums_are_those_that_coreutils_check(tmp_path: Path) -> None:
    (tmp_path / "chart.tgz").write_bytes(b"chart")
    sums = tmp_path / release.CHECKSUMS
    sums.write_text(release.checksums(tmp_path))
    assert sums.read_text() == f"{hashlib.sha256(b'chart').hexdigest()}  chart.tgz\n"
    subprocess.run(["sha256sum", "--check", "--quiet", sums.name], cwd=tmp_path, check=True)
    (tmp_path / "chart.tgz").write_bytes(b"another")
    done = subprocess.run(["sha256sum", "--check", sums.name], cwd=tmp_path, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("member", "faults"), [("oci-layout", 0), ("repositories", 1)], ids=["docker 25", "docker 24"]
)
def test_an_archive_that_is_not_an_oci_archive_is_refused(
    tmp_path: Path, member: str, faults: int
) -> None:
    file = tmp_path / member
    file.touch()
    with tarfile.open(tmp_path / "antefix-0.1.0-cpu.oci.tar", "w") as archive:
        archive.add(file, member)
    found = [fault.partition(" is not")[0] for fault in release.of_another_format(tmp_path)]
    assert found == ["antefix-0.1.0-cpu.oci.tar"] * faults
