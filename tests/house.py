"""The architecture: its folders from the top down, their purposes, and their imports of Antefix.

`python -m tests.house` writes folders and purposes into docs/architecture.md;
tests/test_dependency_direction.py compares the code, and that page, with this list.
"""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- the house: python -m tests.house -->\n", "<!-- end of the house -->\n"


class Room(NamedTuple):
    """A folder of the architecture, with all of its folders that are not listed separately."""

    folder: str
    does: str
    imports: tuple[str, ...] = ()


HOUSE = (
    Room(
        "benchmarks",
        "benchmarks: `make bench-*`, one folder each",
        (
            "benchmarks/stand",
            *("cli", "cli/local", "deployments", "deployments/gateway"),
            *("deployments/gateway/answer", "deployments/gateway/pool"),
            *("deployments/gateway/models", "deployments/gateway/attempt"),
            *("deployments/gateway/record", "deployments/gateway/intake", "deployments/engine"),
            *("deployments/offline", "deployments/process", "deployments/fleet"),
            *("deployments/models", "deployments/prompt", "deployments/wire", "loadgen"),
            *("simulator", "autoscaling", "weights", "observability", "router", "common"),
        ),
    ),
    Room(
        "benchmarks/stand",
        "the harness that benchmarks share",
        (
            *("cli", "cli/local", "deployments/gateway", "deployments/gateway/pool"),
            *("deployments/engine", "deployments/process", "deployments/fleet"),
            *("deployments/models", "deployments/prompt", "deployments/wire", "loadgen"),
            *("simulator", "autoscaling", "weights", "router", "common"),
        ),
    ),
    Room(
        "cli",
        "the `antefix` command: one module per subcommand",
        (
            *("cli/local", "deployments/gateway/intake", "deployments/offline", "k8s"),
            *("deployments/fleet", "deployments/models", "deployments/wire", "loadgen"),
            *("simulator", "autoscaling", "weights", "observability", "common"),
        ),
    ),
    Room(
        "cli/local",
        "a fleet on this machine: Ray, Redis, Prometheus, ports and processes",
        (
            *("deployments", "deployments/gateway", "deployments/fleet"),
            *("deployments/models", "weights", "observability", "common"),
        ),
    ),
    Room(
        "deployments",
        "what Ray Serve runs: its applications, the autoscaler, a node's drain",
        (
            *("deployments/gateway", "deployments/gateway/inquiries"),
            *("deployments/gateway/intake", "deployments/engine", "deployments/process"),
            *("deployments/fleet", "autoscaling", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway",
        "**one gateway process**: the APIs, and `/antefix/` in `page/`",
        (
            *("deployments/gateway/answer", "deployments/gateway/checks"),
            *("deployments/gateway/inquiries", "deployments/gateway/pool"),
            *("deployments/gateway/models",),
            *("deployments/gateway/attempt", "deployments/gateway/record"),
            *("deployments/gateway/intake", "deployments/process", "deployments/fleet"),
            *("deployments/wire", "observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway/answer",
        "an answer on its way to the client, from one or several engines",
        (
            *("deployments/gateway/pool", "deployments/gateway/attempt"),
            *("deployments/gateway/record", "deployments/gateway/intake"),
            *("deployments/process", "deployments/wire", "observability"),
        ),
    ),
    Room(
        "deployments/gateway/checks",
        "checks before a request is scheduled: fields, sizes, budgets",
        (
            *("deployments/gateway/pool", "deployments/gateway/intake"),
            *("deployments/fleet", "deployments/wire"),
            *("observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway/inquiries",
        "status, past requests, profiles",
        (
            *("deployments/gateway/pool", "deployments/gateway/models"),
            *("deployments/gateway/record",),
            *("deployments/gateway/intake", "deployments/wire"),
            *("autoscaling", "observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway/pool",
        "the pools of a fleet: prompts, replicas, and a request's turn",
        (
            *("deployments/gateway/models",),
            *("deployments/gateway/attempt", "deployments/gateway/record"),
            *("deployments/gateway/intake", "deployments/fleet", "deployments/prompt"),
            *("deployments/wire", "autoscaling", "observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway/models",
        "names of models: splits, canaries",
        (
            *("deployments/fleet", "deployments/prompt", "deployments/wire"),
            *("observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway/attempt",
        "one try of a request on one engine",
        (
            *("deployments/gateway/record", "deployments/gateway/intake", "deployments/wire"),
            *("autoscaling", "observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway/record",
        "records of requests: explanations, log, metrics",
        (
            *("deployments/gateway/intake", "deployments/process", "deployments/fleet"),
            *("autoscaling", "observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/gateway/intake",
        "input: keys, bodies, a request's options, and its errors",
        (
            *("deployments/fleet", "deployments/wire", "autoscaling", "observability"),
            *("router", "common"),
        ),
    ),
    Room(
        "deployments/engine",
        "**one replica process**: an engine and its HTTP server, in a Ray Serve actor",
        (
            *("deployments/engine/vllm", "deployments/process", "deployments/fleet"),
            *("deployments/models", "deployments/wire", "observability", "router", "common"),
        ),
    ),
    Room(
        "deployments/engine/vllm",
        "all imports of vLLM, and all dependencies on its internals",
        (
            *("deployments/prompt", "deployments/wire"),
            *("autoscaling", "weights", "observability", "common"),
        ),
    ),
    Room(
        "deployments/offline",
        "an engine without a server: evaluates weights, tunes speculation",
        (*("deployments/fleet", "deployments/models", "weights", "common"),),
    ),
    Room(
        "k8s",
        "`antefix k8s`; the chart's schema and README",
        ("deployments/fleet", "common"),
    ),
    Room(
        "deployments/process",
        "shared by gateways and replicas: HTTP server, logs, metrics",
        ("deployments/fleet", "observability", "common"),
    ),
    Room(
        "deployments/fleet",
        "the fleet file: settings, checks, reference",
        ("deployments/models", "autoscaling", "weights", "observability", "router", "common"),
    ),
    Room("deployments/models", "where weights come from", ("common",)),
    Room(
        "deployments/prompt",
        "a request's prompt as token ids, the same at both ends",
        ("deployments/wire",),
    ),
    Room("deployments/wire", "formats between gateways and replicas"),
    Room(
        "loadgen",
        "`antefix bench`: open-loop load for any OpenAI API",
        ("simulator", "common"),
    ),
    Room(
        "simulator",
        "simulated traces, engines and fleets",
        ("autoscaling", "router", "common"),
    ),
    Room(
        "autoscaling",
        "decides admission, overflow and the number of replicas",
        ("router",),
    ),
    Room("weights", "offline work on weights: quantization, sizing, comparison", ("common",)),
    Room(
        "observability",
        "metrics, traces, and what the SLO file generates",
        ("common",),
    ),
    Room(
        "router",
        "decides placement; prefix index and load board in Redis",
        ("common",),
    ),
    Room(
        "common",
        "shared by all: errors, background loops, files, processes, plots",
    ),
)
FOLDERS = [room.folder for room in HOUSE]
TOPS = {folder.partition("/")[0] for folder in FOLDERS}


def room_of(module: str) -> str:
    """Return the listed folder that a module of Antefix is in."""
    path = module.replace(".", "/")
    return max((f for f in FOLDERS if path == f or path.startswith(f + "/")), key=len)


@cache
def modules() -> dict[str, Path]:
    """Every module of Antefix, by its dotted name."""
    found = {}
    for path in (path for top in sorted(TOPS) for path in (ROOT / top).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module a file names in an import, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what they name"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from deployments.fleet import fleet_file` names a module, not its package
            known = names & modules().keys()
            found |= known | ({str(node.module)} if known != names else set())
    return frozenset(found)


def imports_of_ours(module: str) -> frozenset[str]:
    return imports_of(modules()[module]) & modules().keys()


def table() -> str:
    rows = [f"| `{room.folder}/` | {room.does} |" for room in HOUSE]
    return "\n".join(["| Folder | Purpose |", "| -- | -- |", *rows]) + "\n"


def page() -> str:
    """docs/architecture.md with the table as it is now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page())
