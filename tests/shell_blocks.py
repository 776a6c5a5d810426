"""The shell blocks of a page, and which of them no test of a cluster can run.

A block that cannot run says why in the line above it: `<!-- not run: there is no registry -->`.
Every other is run as it stands, in the page's order, by tests/kubernetes_long/test_docs.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^(?:<!-- not run: ([^\n]+) -->\n)?```sh\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class ShellBlock:
    """`not_run` is empty for one that is run."""

    where: str
    text: str
    not_run: str


def shell_blocks(page: Path) -> list[ShellBlock]:
    text = page.read_text()
    return [
        ShellBlock(
            where=f"{page.name}:{text.count(chr(10), 0, found.start(2))}",
            text=found[2],
            not_run=found[1] or "",
        )
        for found in _BLOCK.finditer(text)
    ]
