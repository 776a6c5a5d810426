"""The parts that the tests run in: what each runs, and after which others.

Every test is in exactly one part, except those of `make test-cluster` (`kubernetes_long`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTEST = (sys.executable, "-m", "pytest")

# `make lint` runs them.
PROSE = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").glob("test_prose*.py"))
# Engines' tests that start when the fleets have ended, on the core that these leave. Both queues of
# engines then end at about the same time.
SECOND_QUEUE = (
    "tests/coding_agent",
    "tests/on_serve",
    "tests/quantized",
    "tests/runner_v2",
    "tests/test_kernel_facts.py",
    "tests/test_prompt_equality.py",
    "tests/transcription",
    "tests/vision",
)


@dataclass(frozen=True)
class Part:
    """`usual_s` is what it takes on two quiet cores, for the first run, which has no times yet."""

    name: str
    command: tuple[str, ...]
    usual_s: float
    after: tuple[str, ...] = ()
    nice: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


def tests_of(marks: str, *arguments: str) -> tuple[str, ...]:
    return (*PYTEST, "-m", marks, *arguments)


def without(*paths: str) -> tuple[str, ...]:
    return tuple(f"--ignore={path}" for path in paths)


# A fleet leaves a third of two cores idle, so that other work runs next to it. Whatever does is
# nicer than the fleet's engines, which would otherwise wait for a core. Quick tests mostly wait:
# six run at once on two cores.
ENGINES = "real and not (cluster or core)"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PARTS = {
    "test": (
        Part("lint", ("make", "--no-print-directory", "lint"), 150, nice=10),
        Part("core", tests_of("core"), 240),
        Part(
            "quick",
            tests_of(
                "not (real or kubernetes or kubernetes_long)",
                *("-n", "6", "--dist", "loadfile"),
                *without(*PROSE),
            ),
            420,
            after=("core",),
        ),
    ),
    "rest": (
        Part("kubernetes", tests_of("kubernetes"), 600, nice=10),
        Part("fleets", tests_of("cluster and not core"), 1200),
        Part(
            "engines",
            tests_of(ENGINES, *without(*SECOND_QUEUE)),
            1700,
            nice=5,
            environment=ONE_THREAD,
        ),
        Part(
            "more-engines",
            tests_of(ENGINES, *SECOND_QUEUE),
            520,
            after=("fleets",),
            nice=5,
            environment=ONE_THREAD,
        ),
    ),
}
