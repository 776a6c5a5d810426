"""docs/cli.md is what the commands say of themselves."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_every_command_and_option() -> None:
    """If it fails: make reference."""
    printed = subprocess.run(
        [sys.executable, "-m", "typer", "cli.main", "utils", "docs", "--name", "antefix"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (ROOT / "docs" / "cli.md").read_text() == printed
