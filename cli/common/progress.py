"""Progress of long steps on stderr: bars on a terminal, otherwise one line per step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from cli.common.output import note, notes

# A layer's quantization or a large file takes minutes, between which rich would forget the speed.
SPEED_OVER_S = 3600.0


class _Remaining(TimeRemainingColumn):
    """The remaining time of a step whose done fraction grows, otherwise nothing."""

    def render(self, task: Task) -> Text:
        if task.finished or task.time_remaining is None:
            return Text()
        return super().render(task).append(" left")


class ProgressStep:
    """One bar. `show` takes the done fraction, 0 to 1, or None if it is unknown."""

    def __init__(self, title: str, bars: Progress | None) -> None:
        self._bars = bars
        self._title = title
        self._began = time.monotonic()
        self._detail = ""
        self._task = bars.add_task(title, total=None, detail="") if bars else None

    def show(self, fraction: float | None, detail: str = "") -> None:
        if self._bars is not None and self._task is not None:
            total = None if fraction is None else 1.0
            self._bars.update(self._task, total=total, completed=fraction or 0.0, detail=detail)
        elif detail and _words(detail) != _words(self._detail):
            note(f"{self._title}: {detail}")
        self._detail = detail

    def done(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, total=1.0, completed=1.0)
            self._bars.stop_task(self._task)
        else:
            note(f"{self._title}: ready after {time.monotonic() - self._began:.1f} s")


def _words(detail: str) -> str:
    """Return the detail without its numbers, whose every change would print a line."""
    return re.sub(r"[\d.,]+", "", detail)


class Steps:
    """A context with progress bars. Text printed inside appears above them."""

    def __init__(
        self, console: Console = notes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bars = (
            Progress(
                SpinnerColumn(finished_text="[green]✓[/]"),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
                _Remaining(),
                TextColumn("{task.fields[detail]}", markup=False),
                console=console,
                get_time=clock,
                speed_estimate_period=SPEED_OVER_S,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars:
            self._bars.stop()

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Yield a step, which is done when the block ends without an exception."""
        step = self.open(title)
        yield step
        step.done()

    def open(self, title: str) -> ProgressStep:
        return ProgressStep(title, self._bars)
