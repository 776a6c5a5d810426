"""Functions stay short enough to read at once, and objects small enough to know.

The long functions are commands, whose length is that of their options; the parts of a gateway, one
per line; and the placement of a request, in whose loop a call per replica would cost time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house import ROOT, TOPS, modules
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
    assert len(long) <= 14, long


MOST_ATTRIBUTES = 23


def attributes() -> Iterator[tuple[str, int]]:
    """Every class of Antefix with a constructor, and how many attributes that sets."""
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            for init in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(init, ast.FunctionDef) and init.name == "__init__":
                    assert isinstance(node, ast.ClassDef)
                    yield f"{module}.{node.name}", len(set(_set_on_self(init)))


def _set_on_self(init: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(init):
        match node:
            case ast.Attribute(ast.Name("self"), name, ast.Store()):
                yield name


def test_no_constructor_sets_many_attributes() -> None:
    assert not [of for of, count in some(attributes()) if count > MOST_ATTRIBUTES]
