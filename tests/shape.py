"""The shape of the code, in numbers: python -m tests.shape

`test_dependency_direction.py`, `test_gateway_laws.py` and `test_laws_of_code.py` use the same
functions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache

from observability.traces.request_record import Phases, RequestRecord
from tests.house import HOUSE, ROOT, imports_of_ours, modules
from tests.some import some

GATEWAY = ROOT / "deployments" / "gateway"


def folder_of(module: str) -> str:
    is_package = modules()[module].name == "__init__.py"
    return module if is_package else module.rpartition(".")[0]


def folder_sizes() -> Counter[str]:
    """Return the number of modules of each folder, without its `__init__.py`."""
    own = (module for module, path in modules().items() if path.name != "__init__.py")
    return Counter(map(folder_of, own))


def folder_arrows() -> set[tuple[str, str]]:
    """Return which folder imports which other one."""
    every = ((folder_of(a), folder_of(b)) for a in modules() for b in imports_of_ours(a))
    return {(a, b) for a, b in every if a != b}


def record_assignments() -> Iterator[str]:
    """Yield each assignment of a field of the request's record outside its module."""
    own = {field.name for kind in (RequestRecord, Phases) for field in fields(kind)}
    for path in some([*GATEWAY.rglob("*.py"), *(ROOT / "observability/metrics").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value, name, ast.Store()):
                    of = ast.unparse(value).rpartition(".")[2]
                    is_one = name in own and of in ("record", "_record", "phases")
                case ast.Call(called):
                    is_one = ast.unparse(called).endswith("setattr")
                case _:
                    continue
            if is_one:
                yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def positional_calls(most: int = 4) -> Iterator[str]:
    """Yield each call in the product with more positional arguments."""
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(called, given) if len(given) > most:
                    if not any(isinstance(each, ast.Starred) for each in given):
                        yield f"{module}: {ast.unparse(called)}"


def levels() -> int:
    """Return the number of levels of the listed folders, which import downward only."""
    below = {room.folder: room.imports for room in HOUSE}

    @cache
    def level(folder: str) -> int:
        return 1 + max(map(level, below[folder]), default=0)

    return max(map(level, below))


def main() -> None:
    sizes, arrows = folder_sizes(), folder_arrows()
    print(f"{len(modules())} modules in {len(sizes)} folders, {len(HOUSE)} of them listed")
    print("modules of the largest folders:", dict(sizes.most_common(5)))
    print(f"{len(arrows)} arrows between folders, {levels()} levels of listed ones")
    print("circles of two folders:", sum((b, a) in arrows for a, b in arrows) // 2)
    print("assignments of the record's fields outside its module:", len([*record_assignments()]))
    print("calls with more than four positional arguments:", len([*positional_calls()]))


if __name__ == "__main__":
    main()
