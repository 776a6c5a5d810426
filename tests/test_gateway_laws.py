"""How the gateway is built: folders of a readable size, and an answer's way without detours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import get_type_hints

import pytest

from observability.traces.request_record import RequestRecord
from tests.house import FOLDERS, imports_of_ours, modules, room_of
from tests.shape import GATEWAY, record_assignments
from tests.some import some

# The folders of the architecture below the gateway's folder.
BELOW = [folder for folder in FOLDERS if folder.startswith("deployments/gateway/")]


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(GATEWAY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(GATEWAY)}: {node.name}", node


def named(name: str) -> ast.ClassDef:
    (found,) = (node for where, node in classes() if where.endswith(f": {name}"))
    return found


def test_only_three_gateway_modules_are_outside_a_subpackage() -> None:
    flat = {path.stem for path in GATEWAY.glob("*.py")} - {"__init__"}
    assert flat == {"gateway", "gateway_parts", "inference"}


def test_the_packages_have_few_levels() -> None:
    arrows = {
        (room_of(a), room_of(b))
        for a in modules()
        if room_of(a) in (*BELOW, "deployments/gateway")
        for b in imports_of_ours(a)
        if room_of(b) in BELOW and room_of(a) != room_of(b)
    }

    def level(room: str) -> int:
        return max((1 + level(b) for a, b in arrows if a == room), default=1)

    assert level("deployments/gateway") <= 8


def test_no_module_imports_itself_through_others() -> None:
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above[above.index(module) :], module])
        if module not in done:
            for other in sorted(imports_of_ours(module)):
                if not module.startswith(other + "."):  # a package's own docstring
                    visit(other, (*above, module))
            done.add(module)

    for module in some(modules()):
        visit(module, ())


def test_no_class_of_the_gateway_is_long() -> None:
    long = {
        where: lines
        for where, node in some(classes())
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > 240
    }
    assert not long


def own_attributes(of: ast.ClassDef) -> set[str]:
    """Those that its constructor sets."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    (init,) = (n for n in of.body if isinstance(n, kinds) and n.name == "__init__")
    return {
        target.attr
        for node in ast.walk(init)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
    }


@pytest.mark.parametrize("name", ["Gateway", "GatewayPool", "Relay"])
def test_a_constructor_sets_few_attributes(name: str) -> None:
    assert 0 < len(own_attributes(named(name))) <= 15


def test_the_relay_has_few_parts() -> None:
    assert 0 < len(own_attributes(named("Relay"))) <= 8


@pytest.mark.parametrize("name", ["Relay", "Tries", "OneTry"])
def test_an_answer_is_relayed_without_callbacks(name: str) -> None:
    relaying = named(name)
    methods = {
        method.name
        for method in relaying.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.decorator_list
    }
    called = {id(node.func) for node in ast.walk(relaying) if isinstance(node, ast.Call)}
    passed = [
        ast.unparse(node)
        for node in ast.walk(relaying)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "self"
        and node.attr in methods
        and id(node) not in called
    ]
    assert methods and not passed


def test_no_decision_about_an_answer_depends_on_an_error_code() -> None:
    compared = [
        f"{path.name}: {ast.unparse(node)}"
        for path in some((GATEWAY / "answer").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(
            isinstance(side, ast.Attribute) and side.attr in ("code", "error")
            for side in (node.left, *node.comparators)
        )
        and ast.unparse(node.comparators[0]) != "None"
    ]
    assert not compared


def test_only_two_exceptions_control_an_answer() -> None:
    steering = {
        node.name
        for where, node in classes()
        if where.startswith(("answer/", "attempt/"))
        and any(ast.unparse(base).endswith(("Exception", "Error")) for base in node.bases)
    }
    assert steering == {"ReplicaFailed", "NoReplicaUp"}


def test_no_field_of_the_record_is_assigned_outside_its_module() -> None:
    assert not list(record_assignments())


def test_no_field_of_the_record_is_a_callback() -> None:
    types = get_type_hints(RequestRecord).values()
    assert not [each for each in types if "Callable" in str(each)]


def test_recovery_is_decided_without_a_clock_or_network() -> None:
    (path,) = GATEWAY.rglob("recovery.py")
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    names = "observability.traces.request_record"  # of what is reported
    assert imported == {"__future__", "dataclasses", "math", names}
