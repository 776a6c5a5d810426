"""What the code says is plain English too: its messages, help, docstrings and comments.

The rules are those of `docs/vale`, as for pages. A string of three words or more is taken for a
message: errors, remedies, log lines, help, and texts of the dashboards.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.prose import ROOT, alerts_of_texts, comments
from tests.some import some

# The product.
PACKAGES = (
    *("autoscaling", "cli", "common", "deployments", "k8s", "loadgen", "observability", "router"),
    *("simulator", "weights"),
)
FILES = tuple(f"{package}/**/*.py" for package in PACKAGES)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def words(node: ast.AST) -> str:
    """Of a literal; what an f-string inserts is one word."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(words(value) or "code" for value in values)
    return ""


def read_by_people(module: str) -> Iterator[str]:
    """Comments, docstrings, of whose tables each line is one paragraph, and messages."""
    yield from comments(module)
    tree = ast.parse(module)
    known: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (documented := ast.get_docstring(node)):
            yield re.sub(r"^ {4,}", "\n\n", documented, flags=re.M)
            known.update(ast.iter_child_nodes(node.body[0]))
        elif isinstance(node, ast.JoinedStr):
            known.update(node.values)
        if node not in known and len((text := words(node)).split()) >= 3:
            yield text


def alerts_in(module: str) -> list[str]:
    return alerts_of_texts(read_by_people(module))


@pytest.mark.parametrize("files", FILES)
def test_what_a_package_says_is_plain_english(files: str) -> None:
    found = {str(file): alerts_in(file.read_text()) for file in some(ROOT.glob(files))}
    assert not {file: faults for file, faults in found.items() if faults}


def test_messages_docstrings_and_comments_are_read_and_code_is_not() -> None:
    odd = "Nobody gets in."
    module = f'"""{odd}"""\nraise E(f"{{x}}: nobody gets in")\ndef f():\n    "``nobody`` gets in"\n'
    assert len(alerts_in(module + f"# {odd}\nx = 1  # {odd}\n")) == 4
