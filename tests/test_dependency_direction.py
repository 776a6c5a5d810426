"""The arrows of the house: which package may import which, and where the heavy imports are."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# package -> what it may import of ours, by prefix; its own modules always
ARROWS = {
    "deployments": ["autoscaling", "router", "observability", "weights", "benchmarks", "k8s"],
    "autoscaling": ["router"],
    "router": [],
    "observability": [],
    "weights": [],
    # a benchmark starts the fleet that it measures
    "benchmarks": ["router", "autoscaling", "weights", "deployments"],
    "k8s": ["deployments.fleet"],
}

VLLM_MODULES = {
    "deployments/vllm_adapter.py",
    "deployments/vllm_facts.py",
    "deployments/vllm_offline.py",
    "deployments/vllm_plugin.py",
    "deployments/vllm_speculation.py",
    "deployments/settings/vllm_args.py",
}
# Outside these, `router` and `autoscaling` are pure: a decision is a function of data.
RIM = {
    "router/request_router.py": {"ray"},
    "router/load.py": {"asyncio", "time"},
    "router/active.py": {"asyncio"},
    "router/demand.py": {"asyncio", "time"},
    "router/redis_client.py": {"redis"},
    "router/redis_lane.py": {"redis", "asyncio"},
    "router/slots.py": {"redis", "asyncio"},
    "router/sweeper.py": {"redis", "asyncio", "time"},
    "router/publisher.py": {"asyncio", "time"},
    "router/event_stream.py": {"asyncio", "zmq"},
    "router/index.py": {"redis", "asyncio", "time"},
    "router/placed_stream.py": {"asyncio"},
    "router/placer.py": {"asyncio", "time"},
}
IMPURE = {
    "ray",
    "vllm",
    "fastapi",
    "torch",
    "redis",
    "zmq",
    "asyncio",
    "time",
    "datetime",
    "aiohttp",
}


def modules_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Every module a file names in an import, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what they name"
            # `from deployments import fleet` names the module deployments.fleet
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(module: str, packages: list[str]) -> bool:
    return any(module == p or module.startswith(p + ".") for p in packages)


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_only_what_its_arrow_points_to(package: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in modules_of(package)
        for module in imports_of(path)
        if within(module, list(ARROWS)) and not within(module, [package, *ARROWS[package]])
    }
    assert not wrong


def test_every_package_has_its_arrow() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= ARROWS.keys()


def test_nothing_that_ships_imports_the_tests() -> None:
    files = [path for package in ARROWS for path in modules_of(package)]
    assert not [path for path in files for m in imports_of(path) if within(m, ["tests"])]


def test_only_the_adapter_and_the_argument_checker_import_vllm() -> None:
    files = [path for package in ARROWS for path in modules_of(package)]
    importing = {path for path in files for m in imports_of(path) if within(m, ["vllm"])}
    assert {str(path.relative_to(ROOT)) for path in importing} == VLLM_MODULES


@pytest.mark.parametrize(
    "path",
    [
        str(p.relative_to(ROOT))
        for package in ("router", "autoscaling")
        for p in modules_of(package)
    ],
)
def test_a_decision_has_no_clock_no_network_and_no_framework(path: str) -> None:
    imported = {module.partition(".")[0] for module in imports_of(ROOT / path)}
    assert imported & IMPURE <= RIM.get(path, set())


def test_a_gateway_loads_neither_vllm_nor_torch() -> None:
    code = "import sys, deployments.gateway; print(*{'vllm', 'torch'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == ""
