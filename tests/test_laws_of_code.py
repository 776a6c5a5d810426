"""A function is read at one go: this number may fall, and never rises.

What is left are commands whose length is that of their options, the parts of a gateway, one a line,
and the placement of a request, in whose loop a call for each replica would cost time. A change that
lowers the number lowers it here as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house import ROOT, TOPS
from tests.some import some

LONG = 60  # lines


def lengths() -> Iterator[tuple[str, int]]:
    """Every function of the repository, and how many lines it has."""
    inside = (path for top in ("tests", *sorted(TOPS)) for path in (ROOT / top).rglob("*.py"))
    for path in (*inside, *ROOT.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                yield f"{path.relative_to(ROOT)}: {node.name}", lines


def test_few_functions_are_long() -> None:
    long = [f"{where}, {lines} lines" for where, lines in some(lengths()) if lines > LONG]
    assert len(long) <= 8, long
