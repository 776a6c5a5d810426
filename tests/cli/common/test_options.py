"""An option that several commands have is declared once."""

import ast
from collections import Counter
from pathlib import Path

import cli

COMMANDS = Path(cli.__file__).parent


def test_no_option_is_declared_twice() -> None:
    options = Counter(
        ast.unparse(node)
        for file in COMMANDS.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated"
    )
    assert len(options) > 50
    assert [option for option, count in options.items() if count > 1] == []
