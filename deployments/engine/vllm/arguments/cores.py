"""The cores of an engine on a CPU, which other engines of its node may use as well."""

from __future__ import annotations

import os
from collections.abc import Mapping

BOUND_TO = "VLLM_CPU_OMP_THREADS_BIND"
_THREADS = "OMP_NUM_THREADS"


def are_unbound(environment: Mapping[str, str]) -> bool:
    """Return whether an engine on a CPU runs on any free cores."""
    return environment.get(BOUND_TO) == "nobind"


def engines_at_once(environment: Mapping[str, str], workers: int) -> int:
    """Return how many engines like this one, on a CPU, the cores here compute at full speed.

    0: it is bound to cores, and it is unknown whether others are bound to them. `environment`: the
    engine's; each of its workers has OMP_NUM_THREADS threads, and without that variable one for
    each core.
    """
    if not are_unbound(environment):
        return 0
    cores = len(os.sched_getaffinity(0))
    asked = environment.get(_THREADS, "")
    threads = int(asked) if asked.isdecimal() and int(asked) else cores
    return max(1, cores // (threads * workers))
