"""The architecture's rules: an import goes down, never up, and a process has no other's code."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.house import (
    FOLDERS,
    HOUSE,
    PAGE,
    ROOT,
    TOPS,
    Room,
    imports_of,
    imports_of_ours,
    modules,
    page,
    room_of,
)
from tests.shape import folder_arrows, folder_of, folder_sizes

# Outside these, `router` and `autoscaling` are pure: a decision is a function of data.
RIM = {
    "deployments/request_router.py": {"ray"},
    "router/board/load_reader.py": {"asyncio"},
    "router/board/active.py": {"asyncio"},
    "router/budgets/budget_book.py": {"time"},
    "router/budgets/budget_ledger.py": {"asyncio"},
    "router/board/pool_demand.py": {"asyncio", "time"},
    "router/board/fleet_settings.py": {"asyncio"},
    "router/redis/redis_client.py": {"redis"},
    "router/redis/redis_lane.py": {"redis", "asyncio"},
    "router/index/slots.py": {"redis", "asyncio"},
    "router/index/sweeper.py": {"redis", "asyncio", "time"},
    "router/index/publisher.py": {"asyncio", "time"},
    "router/index/event_stream.py": {"asyncio", "zmq"},
    "router/index/index.py": {"redis", "asyncio", "time"},
    "router/board/placed_stream.py": {"asyncio"},
    "router/board/pool_feeds.py": {"asyncio", "time"},
}
IMPURE = {
    "ray",
    "vllm",
    "starlette",
    "torch",
    "redis",
    "zmq",
    "asyncio",
    "time",
    "datetime",
    "aiohttp",
}


def arrows() -> Iterator[tuple[str, str]]:
    """Every import of one module of Antefix by another."""
    for module in modules():
        yield from ((module, other) for other in imports_of_ours(module))


def all_that(module: str) -> set[str]:
    """What a module of Antefix imports of Antefix, directly and through others."""
    found: set[str] = set()
    left = [module]
    while left:
        new = imports_of_ours(left.pop()) - found
        found |= new
        left.extend(new)
    return found


@pytest.mark.parametrize("room", HOUSE, ids=FOLDERS)
def test_a_package_imports_exactly_what_its_arrows_point_to(room: Room) -> None:
    inside = [(a, b) for a, b in arrows() if room_of(a) == room.folder != room_of(b)]
    wrong = [f"{a} imports {b}" for a, b in inside if room_of(b) not in room.imports]
    assert not wrong
    assert {room_of(b) for _, b in inside} == set(room.imports), "an arrow that nothing follows"


@pytest.mark.parametrize("room", HOUSE, ids=FOLDERS)
def test_an_arrow_points_down_the_list(room: Room) -> None:
    below = FOLDERS[FOLDERS.index(room.folder) + 1 :]
    assert set(room.imports) <= set(below)
    assert list(room.imports) == sorted(room.imports, key=FOLDERS.index)


def test_no_two_folders_import_each_other() -> None:
    folders = folder_arrows()
    assert not [(a, b) for a, b in folders if (b, a) in folders]


PROCESSES = (
    "deployments.gateway.gateway",
    "deployments.engine.replica",
    "deployments.autoscaler",
    "deployments.app",
)


def test_a_folder_has_about_fifteen_modules_at_most() -> None:
    assert not {folder: size for folder, size in folder_sizes().items() if size > 15}


@pytest.mark.parametrize("process", PROCESSES)
def test_no_two_modules_of_a_process_have_the_same_name(process: str) -> None:
    own = [module for module in all_that(process) if modules()[module].name != "__init__.py"]
    names = Counter(module.rpartition(".")[2] for module in own)
    assert own
    assert not [module for module in own if names[module.rpartition(".")[2]] > 1]


def test_nothing_imports_the_benchmarks_or_the_tests() -> None:
    outside = [room for room in HOUSE if not room.folder.startswith("benchmarks")]
    assert not [
        room.folder for room in outside if any(to.startswith("benchmarks") for to in room.imports)
    ]
    assert not [
        m for m in modules() if any(i.startswith("tests") for i in imports_of(modules()[m]))
    ]


def benchmark_of(module: str) -> str:
    """The folder of benchmarks that a module is in; empty for those in none."""
    top, _, inside = folder_of(module).partition(".")
    return inside.partition(".")[0] if top == "benchmarks" else ""


def test_a_benchmark_imports_no_other_benchmark_only_the_harness() -> None:
    inside = [(a, b) for a, b in arrows() if benchmark_of(a) and b.startswith("benchmarks.")]
    assert {benchmark_of(b) for _, b in inside} >= {"harness", "scale"}
    allowed = {a: {benchmark_of(a), "harness"} for a, _ in inside}
    assert not [f"{a} imports {b}" for a, b in inside if benchmark_of(b) not in allowed[a]]


@pytest.mark.parametrize(
    ("process", "other"), [("gateway", "engine"), ("engine", "gateway"), ("wire", "engine")]
)
def test_one_process_imports_no_code_of_the_other(process: str, other: str) -> None:
    inside = [m for m in modules() if m.startswith(f"deployments.{process}")]
    assert inside
    for module in inside:
        assert not [m for m in all_that(module) if m.startswith(f"deployments.{other}.")], module


def test_every_module_is_in_a_package_that_ships() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == TOPS
    for module in modules():
        for parent, _ in pairwise([*_ancestors(module), module]):
            assert parent in modules(), f"{parent} has no __init__.py"


def _ancestors(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def test_one_folder_of_the_product_imports_vllm() -> None:
    importing = {
        m
        for m, path in modules().items()
        if not m.startswith("benchmarks.")
        if any(name == "vllm" or name.startswith("vllm.") for name in imports_of(path))
    }
    assert importing
    assert {".".join(module.split(".")[:3]) for module in importing} == {"deployments.engine.vllm"}


@pytest.mark.parametrize(
    "path",
    [
        str(path.relative_to(ROOT))
        for module, path in modules().items()
        if room_of(module) in ("router", "autoscaling")
    ],
)
def test_a_decision_has_no_clock_no_network_and_no_framework(path: str) -> None:
    imported = {module.partition(".")[0] for module in imports_of(ROOT / path)}
    assert imported & IMPURE <= RIM.get(path, set())


def test_a_gateway_loads_neither_vllm_nor_torch() -> None:
    code = "import sys, deployments.gateway.gateway; print(*{'vllm', 'torch'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == ""


def test_the_architecture_page_shows_the_packages_as_they_are() -> None:
    assert PAGE.read_text() == page(), "run `make reference`"
