"""How the gateway is built: rooms of a size that one reads, and an answer's way without detours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import FOLDERS, ROOT, imports_of_ours, modules, room_of
from tests.some import some

GATEWAY = ROOT / "deployments" / "gateway"
ROOMS = sorted(path.parent for path in GATEWAY.glob("*/__init__.py"))
# Rooms of the house below the gateway's folder.
BELOW = [folder for folder in FOLDERS if folder.startswith("deployments/gateway/")]


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(GATEWAY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(GATEWAY)}: {node.name}", node


def named(name: str) -> ast.ClassDef:
    (found,) = (node for where, node in classes() if where.endswith(f": {name}"))
    return found


def test_few_modules_are_in_no_room() -> None:
    flat = {path.stem for path in GATEWAY.glob("*.py")} - {"__init__"}
    assert flat == {"gateway", "inference", "parts"}


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.name)
def test_a_room_has_at_most_14_files(room: Path) -> None:
    assert len(set(room.glob("*.py")) - {room / "__init__.py"}) <= 14


def test_the_rooms_have_at_most_6_levels_and_25_arrows() -> None:
    arrows = {
        (room_of(a), room_of(b))
        for a in modules()
        if room_of(a) in (*BELOW, "deployments/gateway")
        for b in imports_of_ours(a)
        if room_of(b) in BELOW and room_of(a) != room_of(b)
    }
    assert len(arrows) <= 25

    def level(room: str) -> int:
        return max((1 + level(b) for a, b in arrows if a == room), default=1)

    assert level("deployments/gateway") <= 6


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
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > 220
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


def test_the_relay_has_few_parts_and_no_callbacks() -> None:
    relay = named("Relay")
    own = own_attributes(relay)
    assert 0 < len(own) <= 8
    passed = [
        ast.unparse(call)
        for call in ast.walk(relay)
        if isinstance(call, ast.Call)
        for given in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(given, ast.Attribute)
        and ast.unparse(given.value) == "self"
        and given.attr in {n.name for n in relay.body if isinstance(n, ast.AsyncFunctionDef)}
    ]
    assert not passed


def test_no_code_checks_the_kind_of_an_attempt() -> None:
    asking = [
        f"{path.name}: {ast.unparse(node)}"
        for path in some((GATEWAY / "answer").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and "Attempt" in ast.unparse(node)
    ]
    assert not asking


def test_two_exceptions_steer_an_answer() -> None:
    steering = {
        node.name
        for where, node in classes()
        if where.startswith(("answer/", "attempt/"))
        and any(ast.unparse(base).endswith(("Exception", "Error")) for base in node.bases)
    }
    assert steering == {"ReplicaFailed", "NoReplicaUp"}


def test_recovery_is_decided_without_a_clock_or_network() -> None:
    (path,) = GATEWAY.rglob("recovery.py")
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "dataclasses", "math"}
