"""No test passes because a loop had nothing to look at.

A test whose assertions are all in loops checks nothing where they are empty. Such a loop goes over
a literal, a constant or `tests.some.some(...)`, unless Hypothesis makes what it goes over.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.some import some

TESTS = Path(__file__).parent
# Their parameter is a page, and a page may have none of what they look for.
MAY_BE_EMPTY = {
    "test_every_link_leads_somewhere",
    "test_helm_has_every_option_that_is_given_to_it",
    "test_the_chart_takes_the_values_that_commands_give_it",
    "test_antefix_has_every_command_and_option",
    "test_every_key_that_is_named_is_one_of_the_charts",
}
_WRAPPERS = {"enumerate", "sorted", "zip", "reversed", "list"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def asserts(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Assert) or _raises(one) for one in ast.walk(node))


def _raises(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        "raises" in ast.unparse(item.context_expr) for item in node.items
    )


def checks(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that assert, those in a `with` as well."""
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith) and not _raises(statement):
            yield from checks(statement.body)
        elif not isinstance(statement, Function | ast.ClassDef) and asserts(statement):
            yield statement


def is_never_empty(found: ast.expr) -> bool:
    match found:
        case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
            return bool(ast.unparse(found).strip("()[]{}"))
        case ast.Name(name):
            return name.isupper()
        case ast.Attribute(_, name):
            return name.isupper()
        case ast.Call(ast.Name("some"), _):
            return True
        case ast.Call(ast.Name("range"), arguments):
            return all(isinstance(one, ast.Constant) for one in arguments)
        case ast.Call(ast.Name(name), arguments) if name in _WRAPPERS:
            return all(is_never_empty(one) for one in arguments)
        case ast.Call(ast.Attribute(of, "items" | "values" | "keys" | "product"), _):
            return is_never_empty(of) or ast.unparse(of) == "itertools"
    return False


def every_test_of(file: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield node


def can_pass_without_assertion(test: Function) -> bool:
    if "given(" in "".join(ast.unparse(one) for one in test.decorator_list):
        return False
    found = list(checks(test.body))
    loops = [one for one in found if isinstance(one, ast.For | ast.AsyncFor)]
    return (
        bool(found)
        and len(loops) == len(found)
        and not any(is_never_empty(one.iter) for one in loops)
    )


def test_no_assertion_is_in_a_loop_that_may_be_empty() -> None:
    files = some(sorted(TESTS.rglob("test_*.py")))
    wrong = [
        f"{file.relative_to(TESTS)}:{test.lineno}: {test.name}: loop over some(...)"
        for file in files
        for test in every_test_of(file)
        if can_pass_without_assertion(test) and test.name not in MAY_BE_EMPTY
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("for one in found():\n    assert one", True),
        ("with a():\n  for one in found():\n    assert one", True),
        ("for one in some(found()):\n    assert one", False),
        ("for number, one in enumerate(found):\n    assert one", True),
        ("for one in (1, 2):\n    assert one", False),
        ("for one in ():\n    assert one", True),
        ("for one in NAMES.items():\n    assert one", False),
        ("for one in found:\n    assert one\nassert found", False),
    ],
)
def test_loops_that_may_be_empty_are_found(source: str, wrong: bool) -> None:
    body = "".join(f"  {line}\n" for line in source.splitlines())
    [test] = ast.parse(f"def test_it():\n{body}").body
    assert isinstance(test, ast.FunctionDef)
    assert can_pass_without_assertion(test) is wrong


def test_an_empty_list_is_an_error() -> None:
    with pytest.raises(AssertionError, match="nothing was found"):
        some(())
