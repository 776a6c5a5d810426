"""Which code was measured, and whether it has changed since, from git.

Without git, without history or in a shallow clone, `here` returns None for what is unknown, and
`changed_since` raises LookupError.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Pages are not part of the measured code.
WRITTEN = (":(exclude)docs", ":(exclude)README.md")
# Nor does a page or a plot of what was measured.
PAGES = (":(exclude)benchmarks/*/page.*", ":(exclude)benchmarks/*/plots.py")


@dataclass(frozen=True)
class Revision:
    """`dirty`: files that are tracked differ from the commit, pages excepted."""

    commit: str | None
    dirty: bool | None


def here(root: Path = ROOT) -> Revision:
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)
    except LookupError:
        return Revision(None, None)
    return Revision(commit, bool(changed))


def changed_since(commit: str, paths: Sequence[str], root: Path = ROOT) -> str | None:
    """The first later commit that changed any of the paths, abbreviated; None where none did.
    Raises LookupError where the history does not show it."""
    _git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    later = f"{commit}..HEAD"
    found = _git(root, "log", "--reverse", "--format=%H", later, "--", *paths, *PAGES)
    return found.partition("\n")[0][:7] or None


def _git(root: Path, *arguments: str) -> str:
    """Its output. Raises LookupError where it fails or `root` is not a checkout."""
    if not (root / ".git").exists():  # a folder inside another project's checkout
        raise LookupError(f"{root} is no git checkout")
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise LookupError(f"git {arguments[0]}: {error}") from None
    return done.stdout.strip()
