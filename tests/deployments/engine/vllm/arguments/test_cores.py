"""How many engines the cores of a machine compute at once, as each of them says."""

import os

import pytest

from deployments.engine.vllm.arguments.cores import BOUND_TO, engines_at_once

UNBOUND = {BOUND_TO: "nobind"}


@pytest.mark.parametrize(
    ("environment", "workers", "expected"),
    [
        ({**UNBOUND, "OMP_NUM_THREADS": "1"}, 1, 8),
        ({**UNBOUND, "OMP_NUM_THREADS": "3"}, 1, 2),
        ({**UNBOUND, "OMP_NUM_THREADS": "2"}, 2, 2),
        ({**UNBOUND, "OMP_NUM_THREADS": "16"}, 1, 1),
        # each has a thread for every core
        (UNBOUND, 1, 1),
        ({**UNBOUND, "OMP_NUM_THREADS": "4,2"}, 1, 1),
        # it is unknown whether others are bound to the same ones
        ({BOUND_TO: "0-3", "OMP_NUM_THREADS": "1"}, 1, 0),
        ({"OMP_NUM_THREADS": "1"}, 1, 0),
    ],
)
def test_engines_without_cpu_binding_share_the_cores(
    environment: dict[str, str], workers: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert engines_at_once(environment, workers) == expected
