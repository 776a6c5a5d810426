"""Sizes that may fall, and never rise. A change that lowers one lowers it here as well.

Long functions that are left: commands whose length is that of their options; the parts of a
gateway, one a line; and the placement of a request, in whose loop a call for each replica would
cost time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house import ROOT, TOPS
from tests.some import some

LONG = 60  # lines

GATEWAY, ENGINE, WIRE = "deployments/gateway", "deployments/engine", "deployments/wire"
# What an answer passes, from its engine to its client.
ANSWER_PATH = (
    *(f"{GATEWAY}/answer/{name}.py" for name in ("relay", "tries", "recovery", "one_try", "move")),
    *(f"{GATEWAY}/answer/{name}.py" for name in ("engine_answer", "answer_to_client")),
    *(f"{GATEWAY}/answer/{name}.py" for name in ("event_reader", "resuming")),
    *(f"{GATEWAY}/attempt/{name}.py" for name in ("any_attempt", "moves", "engine_attempt")),
    *(f"{GATEWAY}/attempt/{name}.py" for name in ("engine_requests", "engine_stream", "transport")),
    f"{GATEWAY}/checks/fatal_requests.py",
    *(f"{ENGINE}/{name}.py" for name in ("confirming", "held_answers")),
    *(f"{WIRE}/{name}.py" for name in ("answer_log", "continuation")),
)


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


@pytest.mark.parametrize(
    ("patterns", "most"),
    [(ANSWER_PATH, 3_660), (("benchmarks/**/*.py",), 15_259)],
    ids=["the path of an answer", "benchmarks"],
)
def test_these_parts_do_not_grow(patterns: tuple[str, ...], most: int) -> None:
    files = [path for pattern in patterns for path in some(ROOT.glob(pattern))]
    assert sum(len(path.read_text().splitlines()) for path in files) <= most
