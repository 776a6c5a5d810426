"""Hooks of MkDocs: the repository's address, and links from pages to files of the repository.

The address is that of pyproject.toml. MkDocs knows only the files below docs/, and copies no
results of benchmarks. A link to a file that exists elsewhere in the repository, or to results,
becomes one below `repo_url`. MkDocs checks every other link, and reports it when it is dead.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()(\.\.?/[^)#\s]+)((?:#[^)\s]*)?\))")


def on_config(config: Any) -> Any:
    """The configuration with the address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project["urls"]["Repository"]
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page's text with those links replaced."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def led_out(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        on_site = target.is_relative_to(ROOT / "docs") and target.suffix != ".jsonl"
        if on_site or not target.exists():
            return link[0]
        return f"{link[1]}{config.repo_url}/blob/main/{target.relative_to(ROOT)}{link[3]}"

    return LINK.sub(led_out, markdown)
