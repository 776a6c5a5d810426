"""What the code says is plain English too: messages, help, docstrings, comments, names of tests.

The rules are those of `docs/vale`, as for pages. A string of three words or more is taken for a
message: errors, remedies, log lines, help, and texts of the dashboards.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.prose import ROOT, alerts_of_texts, comments
from tests.some import some

# The product, and its benchmarks.
PACKAGES = (
    *("autoscaling", "cli", "common", "deployments", "k8s", "loadgen", "observability", "router"),
    *("simulator", "weights", "benchmarks"),
)
FILES = tuple(f"{package}/**/*.py" for package in PACKAGES)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def words(node: ast.AST) -> str:
    """Return the text of a literal; what an f-string inserts is one word."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(words(value) or "code" for value in values)
    return ""


def documentation(module: str) -> Iterator[str]:
    """Comments, and docstrings, of whose tables each line is one paragraph."""
    yield from comments(module)
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, DOCUMENTED) and (documented := ast.get_docstring(node)):
            yield re.sub(r"^ {4,}", "\n\n", documented, flags=re.M)


def messages(module: str) -> Iterator[str]:
    """Strings of three words or more, other than docstrings."""
    known: set[ast.AST] = set()
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            known.update(ast.iter_child_nodes(node.body[0]))
        elif isinstance(node, ast.JoinedStr):
            known.update(node.values)
        if node not in known and len((text := words(node)).split()) >= 3:
            yield text


def names(module: str) -> Iterator[str]:
    """The names of tests, as sentences."""
    for node in ast.walk(ast.parse(module)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test_"):
                    yield name.replace("_", " ")


def alerts_of_tests(texts_of: Callable[[str], Iterable[str]]) -> dict[str, list[str]]:
    """Return the alerts by file, where there are any."""
    tests = some(ROOT.glob("tests/**/*.py"))
    found = {str(file): alerts_of_texts(texts_of(file.read_text())) for file in tests}
    return {file: faults for file, faults in found.items() if faults}


@pytest.mark.parametrize("files", FILES)
def test_texts_of_a_package_are_plain_english(files: str) -> None:
    texts = {file: file.read_text() for file in some(ROOT.glob(files))}
    found = {
        str(file): alerts_of_texts([*documentation(text), *messages(text)])
        for file, text in texts.items()
    }
    assert not {file: faults for file, faults in found.items() if faults}


def test_names_of_tests_are_plain_english() -> None:
    assert not alerts_of_tests(names)


def test_docstrings_and_comments_of_tests_are_plain_english() -> None:
    assert not alerts_of_tests(documentation)


def test_messages_docstrings_comments_and_names_are_read_and_code_is_not() -> None:
    odd = "Nobody gets in."
    module = f'"""{odd}"""\nraise E(f"{{x}}: nobody gets in")\ndef f():\n    "``nobody`` gets in"\n'
    module += f"# {odd}\nx = 1  # {odd}\nasync def test_nobody_gets_in(): f()\n"
    assert len(alerts_of_texts(documentation(module))) == 3
    assert len(alerts_of_texts(messages(module))) == len(alerts_of_texts(names(module))) == 1
