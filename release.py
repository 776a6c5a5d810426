"""What `make release` adds to the files that it has built: python release.py check | FOLDER

It refuses addresses that are placeholders, writes the release notes from CHANGELOG.md and the
bills of materials of the locked packages (CycloneDX), and then the checksums of all files. It
refuses archives of images that are not OCI archives.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import bootstrap

ROOT = Path(__file__).parent
CYCLONEDX = "cyclonedx-bom==7.5.0"
LOCKS = ("cpu", "gpu")
NOTES, CHECKSUMS = "RELEASE_NOTES.md", "SHA256SUMS"
# https://www.rfc-editor.org/rfc/rfc2606 reserves these names.
PLACEHOLDER = re.compile(r"\bexample\.(com|net|org)\b|\.(example|invalid|test)\b")


def addresses() -> dict[str, str]:
    """Return the project's addresses in pyproject.toml, by name."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own = read["tool"]["antefix"] | {"home": read["project"]["urls"]["Repository"]}
    return {name: value for name, value in own.items() if isinstance(value, str)}


def placeholders(addresses: Mapping[str, str]) -> list[str]:
    """Return a sentence for each address that nobody can reach."""
    return [
        f"{name} is {value}, which is a placeholder. Set it in pyproject.toml, and run"
        " `make reference`."
        for name, value in addresses.items()
        if PLACEHOLDER.search(value)
    ]


def notes(version: str, changelog: str) -> str:
    """Return a version's part of the changelog. Raises ValueError: it has none."""
    found = re.search(rf"(?ms)^## \[{re.escape(version)}\].*?(?=^## \[|\Z)", changelog)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section [{version}]. Add one.")
    return found[0].rstrip() + "\n"


def of_another_format(folder: Path) -> list[str]:
    """Return a sentence for each archive of an image that is not an OCI archive."""
    return [
        f"{path.name} is not an OCI archive. docker saves images as OCI archives since version 25."
        " Upgrade docker, or set BUILDER=podman or BUILDER=buildah."
        for path in sorted(folder.glob("*.oci.tar"))
        if "oci-layout" not in _names(path)
    ]


def _names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()


def checksums(folder: Path) -> str:
    """Return the SHA-256 of each file, in the form that `sha256sum --check` reads."""
    return "".join(
        f"{_sha256(path)}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != CHECKSUMS
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:  # images have gigabytes
        return hashlib.file_digest(file, "sha256").hexdigest()


def exit_if(faults: list[str]) -> None:
    if faults:
        sys.exit("Error: " + "\nError: ".join(faults))


def main(folder: Path) -> None:
    exit_if(of_another_format(folder))
    bootstrap.follow_pip()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (folder / NOTES).write_text(notes(version, (ROOT / "CHANGELOG.md").read_text()))
    run = [bootstrap.UV, "tool", "run", "--quiet", "--from", CYCLONEDX]
    for lock in LOCKS:
        listed = [*run, "cyclonedx-py", "requirements"]
        out = ["--output-reproducible", "--output-file", str(folder / f"antefix-{lock}.cdx.json")]
        subprocess.run([*listed, str(ROOT / "requirements" / f"{lock}.lock"), *out], check=True)
    (folder / CHECKSUMS).write_text(checksums(folder))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check"]:
            exit_if(placeholders(addresses()))
        case [folder]:
            main(Path(folder))
        case _:
            sys.exit(__doc__)
