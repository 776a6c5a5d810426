"""The documentation site: every link leads somewhere, every page is in the menu."""

import re
import subprocess
import sys
from pathlib import Path

from tests.some import some

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kubernetes" / "quickstart" / "index.html").exists()


def test_links_to_the_repository_lead_to_files_that_exist() -> None:
    """MkDocs knows the files of docs/ only; `docs/links_out.py` leads the others out."""
    for page in some(DOCS.rglob("*.md")):
        for target in re.findall(r"\]\((\.\.?/[^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_llms_txt_names_pages_that_exist() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text())
    assert all((DOCS / target).exists() for target in some(targets))
