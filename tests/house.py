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


def names(text: str) -> tuple[str, ...]:
    """Return the folders that a text names, without its white space."""
    return tuple(text.split())


HOUSE = (
    Room(
        "benchmarks",
        "benchmarks: `make bench-*`, one folder each",
        names(
            "benchmarks/harness/load benchmarks/harness/fleets benchmarks/harness/results "
            "cli/gateway cli/common cli/local deployments deployments/gateway "
            "deployments/gateway/pool deployments/gateway/models deployments/gateway/attempt "
            "deployments/gateway/intake deployments/engine deployments/engine/serving "
            "deployments/engine/watchdog deployments/engine/vllm "
            "deployments/engine/vllm/kv_tiers deployments/offline deployments/process "
            "deployments/fleet deployments/fleet/settings deployments/models "
            "deployments/prompt deployments/wire loadgen simulator autoscaling/admission "
            "autoscaling weights/plan weights/kernels weights/model weights/speculation "
            "observability/traces router/budgets router/choice router/board router/index "
            "router/redis common"
        ),
    ),
    Room(
        "benchmarks/harness",
        "what benchmarks share",
    ),
    Room(
        "benchmarks/harness/load",
        "load of benchmarks, and what its clients receive",
        names(
            "benchmarks/harness/fleets benchmarks/harness/results cli/gateway "
            "deployments/prompt deployments/wire loadgen simulator common"
        ),
    ),
    Room(
        "benchmarks/harness/fleets",
        "fleets, engines, gateways and Redis of benchmarks",
        names(
            "benchmarks/harness/results cli/gateway cli/local deployments/gateway "
            "deployments/gateway/pool deployments/engine deployments/engine/serving "
            "deployments/process deployments/fleet deployments/models deployments/prompt "
            "deployments/wire autoscaling/admission weights/model weights/speculation "
            "router/board router/index router/redis common"
        ),
    ),
    Room(
        "benchmarks/harness/results",
        "options, judging rules, goals and results of benchmarks",
        names("deployments/models common"),
    ),
    Room(
        "cli",
        "the `antefix` command",
        names("cli/fleet cli/kubernetes cli/gateway cli/models cli/operators cli/common"),
    ),
    Room(
        "cli/fleet",
        "subcommands for the fleet on this machine",
        names(
            "cli/kubernetes cli/gateway cli/common cli/local k8s/preflight deployments/fleet "
            "deployments/models common"
        ),
    ),
    Room(
        "cli/kubernetes",
        "`antefix k8s`",
        names(
            "cli/gateway cli/common deployments/gateway/intake k8s/release k8s/preflight "
            "k8s/needs k8s/chart k8s/client deployments/fleet deployments/fleet/settings "
            "weights/plan weights/kernels common"
        ),
    ),
    Room(
        "cli/gateway",
        "subcommands that talk to a running gateway",
        names(
            "cli/common cli/local deployments/gateway/intake deployments/wire loadgen "
            "simulator common"
        ),
    ),
    Room(
        "cli/models",
        "subcommands that plan, quantize, evaluate and tune a model",
        names(
            "cli/common cli/local deployments/offline deployments/fleet deployments/fleet/settings "
            "deployments/models weights/evaluate weights/plan weights/quantize weights/model "
            "weights/speculation common"
        ),
    ),
    Room(
        "cli/operators",
        "subcommands for API keys, SLOs, Grafana and backtests",
        names(
            "cli/common cli/local deployments/gateway/intake deployments/fleet simulator "
            "autoscaling weights/kernels weights/model observability observability/dashboards "
            "observability/alerts common"
        ),
    ),
    Room(
        "cli/common",
        "shared by subcommands: parsing, output, exit codes, the gateway's client",
        names("cli/local deployments/models common"),
    ),
    Room(
        "cli/local",
        "a fleet on this machine: Ray, Redis, Prometheus, ports and processes",
        names(
            "deployments deployments/gateway deployments/fleet deployments/models "
            "weights/quantize observability observability/metrics common"
        ),
    ),
    Room(
        "deployments",
        "what Ray Serve runs: its applications, the autoscaler, a node's drain",
        names(
            "deployments/gateway deployments/gateway/inquiries deployments/gateway/intake "
            "deployments/engine deployments/process deployments/fleet "
            "deployments/fleet/settings autoscaling/scaling router/board router/redis common"
        ),
    ),
    Room(
        "deployments/gateway",
        "**one gateway process**: the APIs, and `/antefix/` in `page/`",
        names(
            "deployments/gateway/page "
            "deployments/gateway/answer deployments/gateway/checks "
            "deployments/gateway/inquiries deployments/gateway/pool "
            "deployments/gateway/models deployments/gateway/attempt "
            "deployments/gateway/record deployments/gateway/intake deployments/gateway/api "
            "deployments/process deployments/fleet deployments/wire observability/metrics "
            "observability/traces router/budgets router/board router/redis common"
        ),
    ),
    Room(
        "deployments/gateway/page",
        "the web UI under `/antefix/`",
        names("deployments/gateway/api"),
    ),
    Room(
        "deployments/gateway/reference",
        "the API reference, written from these facts",
        names(
            "deployments/gateway/checks deployments/gateway/intake deployments/gateway/api "
            "deployments/process deployments/wire/items deployments/wire"
        ),
    ),
    Room(
        "deployments/gateway/answer",
        "an answer on its way to the client, from one or several engines",
        names(
            "deployments/gateway/pool deployments/gateway/attempt deployments/gateway/record "
            "deployments/gateway/intake deployments/gateway/api deployments/process "
            "deployments/wire observability/metrics observability/traces"
        ),
    ),
    Room(
        "deployments/gateway/checks",
        "checks before a request is scheduled: fields, sizes, budgets",
        names(
            "deployments/gateway/pool deployments/gateway/intake deployments/gateway/api "
            "deployments/fleet deployments/fleet/settings deployments/wire "
            "observability/metrics observability/traces router/budgets router/board "
            "router/index router/redis common"
        ),
    ),
    Room(
        "deployments/gateway/inquiries",
        "status, past requests, profiles",
        names(
            "deployments/gateway/pool deployments/gateway/models deployments/gateway/record "
            "deployments/gateway/intake deployments/gateway/api deployments/wire "
            "autoscaling/admission observability/metrics observability/traces router/choice "
            "router/board router/index router/redis common"
        ),
    ),
    Room(
        "deployments/gateway/pool",
        "the pools of a fleet: prompts, replicas, and a request's turn",
        names(
            "deployments/gateway/models deployments/gateway/attempt "
            "deployments/gateway/record deployments/gateway/intake deployments/gateway/api "
            "deployments/fleet deployments/prompt deployments/wire autoscaling/admission "
            "autoscaling observability/metrics router/choice router/board router/index "
            "router/redis common"
        ),
    ),
    Room(
        "deployments/gateway/models",
        "names of models: splits, canaries",
        names(
            "deployments/fleet deployments/fleet/settings deployments/prompt deployments/wire "
            "observability/metrics observability/traces router/index router/redis common"
        ),
    ),
    Room(
        "deployments/gateway/attempt",
        "one try of a request on one engine",
        names(
            "deployments/gateway/record deployments/gateway/intake deployments/gateway/api "
            "deployments/wire autoscaling/admission observability/traces router/choice "
            "router/board common"
        ),
    ),
    Room(
        "deployments/gateway/record",
        "records of requests: explanations, log, metrics",
        names(
            "deployments/gateway/intake deployments/gateway/api deployments/process "
            "deployments/fleet autoscaling observability/metrics observability/traces "
            "router/choice router/board router/redis common"
        ),
    ),
    Room(
        "deployments/gateway/intake",
        "input: keys, bodies, a request's options, and its errors",
        names(
            "deployments/gateway/api deployments/process deployments/fleet "
            "deployments/wire/items deployments/wire autoscaling/admission autoscaling "
            "observability/traces router/choice router/board router/index common"
        ),
    ),
    Room(
        "deployments/gateway/api",
        "public facts of the HTTP API: endpoints, headers, error codes",
        names(
            "deployments/process deployments/wire observability/metrics observability/traces "
            "router/choice"
        ),
    ),
    Room(
        "deployments/engine",
        "**one replica process**: an engine and its HTTP server, in a Ray Serve actor",
        names(
            "deployments/engine/serving deployments/engine/handover deployments/engine/adapters "
            "deployments/engine/start deployments/engine/watchdog deployments/engine/vllm "
            "deployments/engine/vllm/patches deployments/process deployments/fleet "
            "deployments/fleet/settings deployments/models observability/metrics router/board "
            "router/index router/redis common"
        ),
    ),
    Room(
        "deployments/engine/serving",
        "a replica's HTTP side: its load, turns and reports",
        names(
            "deployments/engine/handover deployments/engine/adapters "
            "deployments/engine/watchdog deployments/engine/vllm deployments/wire "
            "observability/metrics router/board router/index router/redis common"
        ),
    ),
    Room(
        "deployments/engine/handover",
        "hands hot prefixes from replica to replica",
        names("deployments/wire router/board router/index"),
    ),
    Room(
        "deployments/engine/adapters",
        "the LoRA adapters of one replica",
        names("deployments/wire"),
    ),
    Room(
        "deployments/engine/start",
        "what a replica checks before its engine starts",
        names("deployments/process deployments/fleet deployments/models common"),
    ),
    Room(
        "deployments/engine/watchdog",
        "detects a hung engine, and reports why a replica ended",
        names("deployments/engine/vllm/watch router/board router/redis"),
    ),
    Room(
        "deployments/engine/vllm",
        "all imports of vLLM, and all dependencies on its internals",
        names(
            "deployments/engine/vllm/grammars deployments/engine/vllm/constraints "
            "deployments/engine/vllm/arguments deployments/engine/vllm/patches "
            "deployments/engine/vllm/resuming deployments/engine/vllm/api_server "
            "deployments/engine/vllm/watch deployments/engine/vllm/kv_tiers "
            "deployments/prompt deployments/wire "
            "autoscaling/learned weights/model weights/speculation observability/traces"
        ),
    ),
    Room(
        "deployments/engine/vllm/grammars",
        "compiles and follows constraints before the engine does",
        names("deployments/engine/vllm/constraints deployments/wire"),
    ),
    Room(
        "deployments/engine/vllm/constraints",
        "sizes and shapes of constraints on an answer",
        names("deployments/wire"),
    ),
    Room(
        "deployments/engine/vllm/offline",
        "a vLLM engine without a server, in its own process",
        names(
            "deployments/engine/vllm/arguments deployments/engine/vllm/resuming weights/evaluate"
        ),
    ),
    Room(
        "deployments/engine/vllm/arguments",
        "engine arguments, and defaults on CPUs",
        names("weights/kernels weights/model common"),
    ),
    Room(
        "deployments/engine/vllm/patches",
        "changes of vLLM's engine",
    ),
    Room(
        "deployments/engine/vllm/resuming",
        "resumes an answer that another engine started",
        names("deployments/engine/vllm/api_server deployments/wire"),
    ),
    Room(
        "deployments/engine/vllm/api_server",
        "changes of vLLM's API server",
        names("deployments/prompt deployments/wire/items deployments/wire"),
    ),
    Room(
        "deployments/engine/vllm/watch",
        "measures vLLM's steps, tokens and speculation",
        names(
            "deployments/engine/vllm/kv_tiers deployments/wire autoscaling/learned "
            "weights/speculation"
        ),
    ),
    Room(
        "deployments/engine/vllm/kv_tiers",
        "keeps blocks of the KV cache in the host's memory and in files, and pulls those of others",
        names("deployments/wire weights/model router/index common"),
    ),
    Room(
        "deployments/offline",
        "an engine without a server: evaluates weights, tunes speculation",
        names(
            "deployments/fleet deployments/models weights/evaluate weights/model "
            "weights/speculation common"
        ),
    ),
    Room(
        "k8s",
        "`antefix k8s`, and the chart's generated files",
    ),
    Room(
        "k8s/nodes",
        "keeps GPU nodes warm",
    ),
    Room(
        "k8s/release",
        "a release in a cluster: status, diff, acceptance",
        names("k8s/preflight k8s/needs k8s/client deployments/fleet common"),
    ),
    Room(
        "k8s/preflight",
        "findings of `antefix k8s preflight`",
        names("k8s/needs k8s/client deployments/fleet"),
    ),
    Room(
        "k8s/needs",
        "what a release needs, and what a cluster has",
        names("k8s/chart k8s/client deployments/fleet"),
    ),
    Room(
        "k8s/chart",
        "the chart's values, schema and README",
        names("deployments/fleet common"),
    ),
    Room(
        "k8s/client",
        "clients of Kubernetes",
        names("common"),
    ),
    Room(
        "deployments/process",
        "shared by gateways and replicas: HTTP server, logs, metrics",
        names("deployments/fleet observability/metrics common"),
    ),
    Room(
        "deployments/fleet",
        "the fleet file: settings, checks, reference",
        names(
            "deployments/fleet/settings deployments/models autoscaling weights/kernels "
            "weights/model router/choice router/index router/redis common"
        ),
    ),
    Room(
        "deployments/fleet/settings",
        "parts of the fleet file, and their checks",
        names(
            "autoscaling/admission autoscaling weights/evaluate weights/model "
            "weights/speculation observability/alerts router/redis common"
        ),
    ),
    Room(
        "deployments/models",
        "where weights come from",
        names("common"),
    ),
    Room(
        "deployments/prompt",
        "a request's prompt as token ids, the same at both ends",
        names("deployments/wire/items deployments/wire"),
    ),
    Room(
        "deployments/wire/items",
        "forms and completion of the items of requests",
        names("deployments/wire"),
    ),
    Room(
        "deployments/wire",
        "formats between gateways and replicas",
    ),
    Room(
        "loadgen",
        "`antefix bench`: open-loop load for any OpenAI API",
        names("simulator common"),
    ),
    Room(
        "simulator",
        "simulated traces, engines and fleets",
        names(
            "autoscaling/admission autoscaling/learned autoscaling/scaling autoscaling "
            "router/choice router/board router/index common"
        ),
    ),
    Room(
        "autoscaling/admission",
        "admission, queues and overflow of one pool",
        names("autoscaling router/choice router/board router/index common"),
    ),
    Room(
        "autoscaling/learned",
        "rates and times that are learned while an engine runs",
    ),
    Room(
        "autoscaling/scaling",
        "the number of replicas",
        names("autoscaling router/board"),
    ),
    Room(
        "autoscaling",
        "decides admission, overflow and the number of replicas",
    ),
    Room(
        "weights",
        "offline work on weights: quantization, sizing, comparison",
    ),
    Room(
        "weights/evaluate",
        "compares a model with the one it was made from",
        names("common"),
    ),
    Room(
        "weights/plan",
        "sizes replicas and fleets for a load",
        names("weights/kernels weights/model weights/speculation common"),
    ),
    Room(
        "weights/kernels",
        "checks weights against GPUs and engine arguments",
        names("weights/model"),
    ),
    Room(
        "weights/quantize",
        "quantizes a model",
        names("weights/model common"),
    ),
    Room(
        "weights/model",
        "facts of models, weights and GPUs",
        names("common"),
    ),
    Room(
        "weights/speculation",
        "whether speculation pays, and draft models",
        names("common"),
    ),
    Room(
        "observability",
        "metrics, traces, and what the SLO file generates",
        names("common"),
    ),
    Room(
        "observability/dashboards",
        "Grafana dashboards",
        names("observability/alerts"),
    ),
    Room(
        "observability/metrics",
        "Prometheus metrics",
        names("observability/alerts observability/traces common"),
    ),
    Room(
        "observability/alerts",
        "what the SLO file generates: rules, alerts, runbooks",
        names("common"),
    ),
    Room(
        "observability/traces",
        "records and traces of requests",
        names("common"),
    ),
    Room(
        "router",
        "decides placement; prefix index and load board in Redis",
    ),
    Room(
        "router/budgets",
        "budgets of tenants in Redis",
        names("router/redis common"),
    ),
    Room(
        "router/choice",
        "chooses a replica for a request: cost, policies, loss",
        names("router/board"),
    ),
    Room(
        "router/board",
        "load of replicas, and demand of pools, in Redis",
        names("router/index router/redis common"),
    ),
    Room(
        "router/index",
        "the prefix index in Redis",
        names("router/redis common"),
    ),
    Room(
        "router/redis",
        "connections, keys and signatures",
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
