"""The life of a chat request in docs/architecture.md names code that exists."""

import ast
import re

import pytest

from tests.house import PAGE, ROOT

STEP = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` ((?:`\w+`(?:, )?)+) \|", re.M)
STEPS = STEP.findall(PAGE.read_text())


def test_the_steps_are_complete_and_in_order() -> None:
    assert [int(number) for number, *_ in STEPS] == list(range(1, 19))


@pytest.mark.parametrize(("number", "path", "names"), STEPS, ids=[n for n, *_ in STEPS])
def test_each_step_names_only_definitions_of_its_file(number: str, path: str, names: str) -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse((ROOT / path).read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    assert set(re.findall(r"`(\w+)`", names)) <= defined
