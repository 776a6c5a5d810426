"""Progress bars of long steps show how long a step has taken and how long it will take."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cli.common.progress import Steps


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def last_line(*fractions: float | None) -> str:
    """Of a terminal, after one of these a minute."""
    screen = io.StringIO()
    clock = Clock()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with Steps(console, clock) as steps:
        step = steps.open("Weights")
        for fraction in fractions:
            step.show(fraction)
            clock.now_s += 60.0
    return screen.getvalue().rpartition("Weights")[2]


def test_a_step_shows_its_elapsed_and_its_remaining_time() -> None:
    # a quarter a minute
    shown = last_line(0.25, 0.5, 0.75)
    assert "0:03:00" in shown and "0:01:00 left" in shown


def test_a_resumed_step_counts_only_what_it_did_itself() -> None:
    assert "0:03:00 left" in last_line(0.5, 0.625)


@pytest.mark.parametrize("fractions", [(None, None), (0.5,), (0.5, 1.0)])
def test_a_step_of_unknown_speed_shows_no_remaining_time(fractions: tuple[float | None]) -> None:
    shown = last_line(*fractions)
    assert "0:0" in shown and "left" not in shown
