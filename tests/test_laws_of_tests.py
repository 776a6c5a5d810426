"""Tests use what a caller sees.

A test asserts on public behavior, and passes a parameter in place of patching a constant. What is
left are counters of third parties, clocks of connections and the hooks into vLLM and Ray that a
test is about. The limits count per file, so that a new test file never has to trade with another.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

from tests.house import ROOT
from tests.some import some

# Python's own, which its documentation describes.
DOCUMENTED = {"_exit", "_replace"}


def is_private_read(node: ast.AST) -> bool:
    """Whether it reads or sets a private attribute of another object, or of a module."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in DOCUMENTED
        and ast.unparse(node.value) not in ("self", "cls")
    )


def is_patched_constant(node: ast.AST) -> bool:
    """Whether it is `monkeypatch.setattr(module, "A_CONSTANT", ...)`."""
    match node:
        case ast.Call(ast.Attribute(attr="setattr"), [_, ast.Constant(str(name)), *_]):
            return name.isupper()
    return False


def counts_by_file(is_one: Callable[[ast.AST], bool]) -> Counter[str]:
    """How many each test file has."""
    return Counter(
        str(path.relative_to(ROOT))
        for path in some((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if is_one(node)
    )


def test_tests_read_few_private_attributes() -> None:
    assert not {file: n for file, n in counts_by_file(is_private_read).items() if n > 6}


def test_tests_patch_few_constants() -> None:
    assert not {file: n for file, n in counts_by_file(is_patched_constant).items() if n > 4}
