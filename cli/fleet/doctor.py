"""`antefix doctor`: check whether a fleet can run on this machine, with facts for a bug report."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import typer

from cli.common.command_line import version_line
from cli.common.exit_codes import ExitCode
from cli.common.options import FleetFile, Output
from cli.common.output import answering, is_data, print_data
from k8s.preflight.findings import PreflightFinding, Severity

if TYPE_CHECKING:
    from cli.local.machine_facts import MachineFacts
    from deployments.fleet.fleet import Fleet

GIB = 2**30
# A gateway may hold as many connections as half of its files.
OPEN_FILES = 4096
VERSIONS_SHOWN = 5
# as in requirements/dev.in and gpu.in
NIXL_VERSION = "1.5.1"


class SizeNeed(NamedTuple):
    """A size that `what` needs, in bytes; `measure` says which size of the machine counts."""

    size: int
    what: str
    measure: str
    remedy: str


SIZE_NEEDS = {
    # three engines, Ray and a gateway (README, Quickstart)
    "memory": SizeNeed(
        11 * GIB,
        "the laptop fleet",
        "free",
        "stop other programs, or lower replicas in the fleet file",
    ),
    "disk": SizeNeed(
        5 * GIB,
        "an installation with a small model",
        "free",
        "delete files, or set ANTEFIX_HOME to a folder on a larger disk",
    ),
    "shared memory": SizeNeed(
        2 * GIB,
        "Ray's object store",
        "in total",
        "enlarge /dev/shm; in a container, pass --shm-size 2g to docker run",
    ),
}


def doctor(
    fleet: FleetFile = "laptop",
    output: Output = "table",
) -> None:
    """Check this machine and its fleet; list problems with remedies."""
    with answering(output):
        from cli.fleet import starting
        from cli.kubernetes.k8s import print_findings
        from cli.local.home import Home
        from cli.local.machine_facts import gather
        from deployments.fleet.fleet_file import load_fleet

        home = Home()
        state = home.state()
        running = state is not None and starting.is_running(home, state)
        wanted = load_fleet(fleet, check_engine_args=False)
        ports = () if running else (wanted.gateway.port, wanted.metrics.port)
        facts = gather(home.folder, ports)
        found = [*findings(facts, running)]
        if not running:
            found += host_tier_findings(facts, wanted)
        found += nixl_findings(facts, wanted)
        found.append(_fleet(state.base_url if state else "", running))
        if is_data(output):
            listed = [finding.as_json() for finding in found]
            print_data({"version": version_line(), "findings": listed}, output)
        else:
            typer.echo(version_line())
            print_findings(found)
        if any(finding.severity == "problem" for finding in found):
            raise typer.Exit(ExitCode.FOUND)


def findings(facts: MachineFacts, running: bool = False) -> Iterator[PreflightFinding]:
    """Yield one finding per question. `running`: a fleet already uses the memory."""
    yield _packages(facts)
    if facts.cpu_build:
        yield _cpu(facts)
    elif not facts.missing_packages:
        yield _driver(facts.drivers)
    if not running:
        yield _size("memory", facts.memory_available, SIZE_NEEDS["memory"])
    yield _size("disk", facts.disk_free, SIZE_NEEDS["disk"])
    yield _size("shared memory", facts.shared_memory, SIZE_NEEDS["shared memory"])
    if facts.open_files < OPEN_FILES:
        seen = (
            f"a process may open {facts.open_files} files, and a gateway accepts half that many "
            "connections"
        )
        yield PreflightFinding(
            "warning", "open files", seen, f"set ulimit -Hn {OPEN_FILES} or more"
        )
    for port in facts.taken:
        remedy = "stop that program, or choose a free port with antefix up --port 0"
        yield PreflightFinding("warning", f"port {port}", "another program listens there", remedy)
    programs = ", ".join(facts.programs) or "none of Prometheus, Alertmanager, Helm, kubectl"
    yield PreflightFinding("note", "programs", programs)


def host_tier_findings(facts: MachineFacts, fleet: Fleet) -> Iterator[PreflightFinding]:
    """Yield whether the machine has the memory that `kv_tiers` reserves when the fleet starts: it
    is shared memory, of which Ray's object store takes a part."""
    tiers = {
        name: pool.kv_tiers.host_bytes * pool.first_replicas
        for name, pool in fleet.pools.items()
        if pool.kv_tiers is not None
    }
    if not tiers:
        return
    size, store = sum(tiers.values()), SIZE_NEEDS["shared memory"]
    lower = f"lower kv_tiers.host_bytes or the number of replicas of {' and '.join(tiers)}"
    need = SizeNeed(size, "the setting kv_tiers", "free", lower)
    yield _size("memory of host tiers", facts.memory_available, need, "problem")
    shared = size + store.size
    enlarge = f"enlarge /dev/shm; in a container, pass --shm-size {ceil(shared / GIB)}g; or {lower}"
    need = SizeNeed(shared, f"the setting kv_tiers with {store.what}", "free", enlarge)
    yield _size("shared memory of host tiers", facts.shared_memory_free, need, "problem")


def nixl_findings(facts: MachineFacts, fleet: Fleet) -> Iterator[PreflightFinding]:
    """Yield whether the packages are installed with which replicas of pools with `peers` pull
    blocks.

    Where PyTorch has CUDA, NIXL imports only its libraries for the same CUDA.
    """
    tiers = {name: pool.kv_tiers for name, pool in fleet.pools.items() if pool.kv_tiers}
    pools = " and ".join(name for name, of in tiers.items() if of.peers)
    if not pools or facts.missing_packages:
        return
    libraries = ("nixl_cu12", "nixl_cu13") if facts.cpu_build else ("nixl_cu13",)
    found = next((name for name in libraries if name in facts.nixl), None)
    if "nixl" in facts.nixl and found:
        yield PreflightFinding("ok", "NIXL", f"nixl and {found} are installed")
        return
    names = ["nixl", *([found] if found else libraries[:1])]
    missing = " and ".join(name for name in names if name not in facts.nixl)
    pins = " ".join(f"{name.replace('_', '-')}=={NIXL_VERSION}" for name in names)
    yield PreflightFinding(
        "problem",
        "NIXL",
        f"{missing} not installed, but kv_tiers.peers of {pools} needs NIXL",
        f"pip install --no-deps {pins}",
    )


def _packages(facts: MachineFacts) -> PreflightFinding:
    if facts.missing_packages:
        missing = " and ".join(facts.missing_packages)
        seen = f"{missing} not installed, so this installation can only operate clusters"
        return PreflightFinding("note", "packages", seen)
    if not facts.other_versions:
        return PreflightFinding("ok", "packages", "all have the pinned versions")
    lock = f"requirements/{'cpu' if facts.cpu_build else 'gpu'}.lock"
    more = len(facts.other_versions) - VERSIONS_SHOWN
    seen = ", ".join(facts.other_versions[:VERSIONS_SHOWN])
    if more > 0:
        seen += f", and {more} more"
    remedy = f"pip install --no-deps --require-hashes -r {lock}"
    return PreflightFinding("warning", "packages", f"untested versions: {seen}", remedy)


def _cpu(facts: MachineFacts) -> PreflightFinding:
    if not facts.has_libnuma:
        remedy = "install it (Debian and Ubuntu: apt-get install libnuma1)"
        return PreflightFinding("problem", "vLLM for CPUs", "libnuma.so.1 is missing", remedy)
    dtype = f"bfloat16 ({facts.bfloat16})" if facts.bfloat16 else "float32 (no AMX or AVX512_BF16)"
    return PreflightFinding("ok", "vLLM for CPUs", f"computes in {dtype}")


def _driver(drivers: tuple[str, ...]) -> PreflightFinding:
    from k8s.preflight.gpus import OLDEST_DRIVER  # imports Kubernetes' client

    if not drivers:
        remedy = "install NVIDIA's driver; without a GPU, install the CPU build"
        return PreflightFinding("problem", "GPU driver", "nvidia-smi finds no GPU", remedy)
    oldest = min(drivers, key=lambda version: int(version.partition(".")[0] or 0))
    if int(oldest.partition(".")[0] or 0) < OLDEST_DRIVER:
        remedy = f"upgrade NVIDIA's driver to {OLDEST_DRIVER} or later"
        return PreflightFinding("problem", "GPU driver", f"{oldest} is too old", remedy)
    return PreflightFinding("ok", "GPU driver", f"{oldest}, GPUs: {len(drivers)}")


def _size(
    title: str, have: int, need: SizeNeed, severity: Severity = "warning"
) -> PreflightFinding:
    seen = f"{have / GIB:.1f} GiB {need.measure}"
    if have >= need.size:
        return PreflightFinding("ok", title, seen)
    wanted = f"{need.what} needs {need.size / GIB:.3g} GiB"
    return PreflightFinding(severity, title, f"{seen}, but {wanted}", need.remedy)


def _fleet(base_url: str, running: bool) -> PreflightFinding:
    if running:
        return PreflightFinding("ok", "fleet", f"answers at {base_url}", "")
    if base_url:
        seen = f"the fleet at {base_url} does not answer"
        remedy = "start it again with antefix up; antefix logs may show why it stopped"
        return PreflightFinding("problem", "fleet", seen, remedy)
    return PreflightFinding(
        "note", "fleet", "no fleet is running here", "start one with antefix up"
    )
