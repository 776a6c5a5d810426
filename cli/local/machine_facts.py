"""Facts of this machine for `antefix doctor`. They are read once; nothing changes."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from cli.local.ports import LOOPBACK, is_free
from common.machine import has_cpu_build, missing_packages

PROGRAMS = ("prometheus", "prometheus-alertmanager", "helm", "kubectl")
# NIXL, and its libraries for CUDA 12 and CUDA 13, which also run without CUDA.
NIXL_MODULES = ("nixl", "nixl_cu12", "nixl_cu13")
SHARED_MEMORY = Path("/dev/shm")
CPU_INFO = Path("/proc/cpuinfo")
LOCKS = Path(__file__).parents[2] / "requirements"
_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class MachineFacts:
    """Facts; sizes are bytes. `missing_packages`: of those that a fleet needs.

    `other_versions`: packages with another version than the lock's, and the lock's.

    `bfloat16`: the CPU's instructions for it, empty if it has none.

    `nixl`: those of `NIXL_MODULES` that are installed.

    `drivers`: NVIDIA's, one for each GPU. `taken`: those of the ports that are in use.
    """

    missing_packages: tuple[str, ...]
    other_versions: tuple[str, ...]
    nixl: tuple[str, ...]
    cpu_build: bool
    has_libnuma: bool
    bfloat16: str
    disk_free: int
    memory_available: int
    shared_memory: int
    shared_memory_free: int
    open_files: int
    taken: tuple[int, ...]
    programs: tuple[str, ...]
    drivers: tuple[str, ...]


def gather(folder: Path, ports: tuple[int, ...]) -> MachineFacts:
    """Gather the facts. `folder` is on the disk of weights and state."""
    shared = shutil.disk_usage(SHARED_MEMORY) if SHARED_MEMORY.exists() else None
    return MachineFacts(
        missing_packages=tuple(missing_packages()),
        other_versions=tuple(other_versions(LOCKS / f"{'cpu' if has_cpu_build() else 'gpu'}.lock")),
        nixl=tuple(name for name in NIXL_MODULES if importlib.util.find_spec(name)),
        cpu_build=has_cpu_build(),
        has_libnuma=_loads("libnuma.so.1"),
        bfloat16=_bfloat16(CPU_INFO.read_text()),
        disk_free=shutil.disk_usage(folder).free,
        memory_available=psutil.virtual_memory().available,
        shared_memory=shared.total if shared else 0,
        shared_memory_free=shared.free if shared else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        taken=tuple(port for port in ports if not is_free(LOOPBACK, port)),
        programs=tuple(name for name in PROGRAMS if shutil.which(name)),
        drivers=_drivers(),
    )


def other_versions(lock: Path) -> Iterator[str]:
    """Yield installed packages whose version `lock` does not pin; none without a lock, as in a
    wheel."""
    pinned: dict[str, set[str]] = {}
    for name, version in _PIN.findall(lock.read_text() if lock.exists() else ""):
        pinned.setdefault(name, set()).add(version)  # one for each version of Python
    for name, versions in pinned.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if found.partition("+")[0] not in versions:
            yield f"{name} {found} (pinned: {', '.join(sorted(versions))})"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _bfloat16(cpu_info: str) -> str:
    flags = cpu_info.partition("flags")[2].partition("\n")[0].split()
    return next((name for name in ("amx_bf16", "avx512_bf16") if name in flags), "")


def _drivers() -> tuple[str, ...]:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(done.stdout.split())
