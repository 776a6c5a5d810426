"""Durations on the command line: 90 and 90s, 5m, 1h30m, 7d, 250ms. Internally they are seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import typer

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = r"(\d+(?:\.\d+)?)(ms|[smhd])"


class Duration(float):
    """A number of seconds that prints as it is written on the command line."""

    def __str__(self) -> str:
        if 0 < self < 1:
            return f"{self * 1000:g}ms"
        text, left = "", float(self)
        for unit in ("d", "h", "m"):
            count, left = divmod(left, _UNITS[unit])
            text += f"{count:.0f}{unit}" if count else ""
        return f"{text}{left:g}s" if left or not text else text


def duration(at_least: float = 0.0) -> Callable[[str | Duration], Duration]:
    """Return a parser of durations for `typer.Option`. A number without a unit is in seconds."""

    def parse(text: str | Duration) -> Duration:
        found = text if isinstance(text, Duration) else _parsed(text)
        if found is None:
            raise typer.BadParameter(f"{text!r} is not a duration such as 90s, 5m or 1h30m")
        if found < at_least:
            raise typer.BadParameter(f"{text!r} is shorter than {Duration(at_least)}")
        return found

    return parse


def _parsed(text: str) -> Duration | None:
    if re.fullmatch(f"(?:{_PART})+", text):
        return Duration(sum(float(value) * _UNITS[unit] for value, unit in re.findall(_PART, text)))
    try:
        seconds = float(text)
    except ValueError:
        return None
    return Duration(seconds) if math.isfinite(seconds) and seconds >= 0 else None
