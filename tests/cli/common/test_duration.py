"""Durations on the command line."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from cli.common.duration import Duration, duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("0.05", 0.05),
        ("90s", 90.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("7d", 604800.0),
        ("0", 0.0),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_has_units(text: str, seconds: float) -> None:
    assert duration()(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5x", "m", "1 h", "-5", "-5s", "inf", "nan", "5m!", "1h 30m"])
def test_other_text_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration such as 90s, 5m or 1h30m"):
        duration()(text)


def test_a_duration_below_the_minimum_is_rejected() -> None:
    with pytest.raises(typer.BadParameter, match="'500ms' is shorter than 1s"):
        duration(at_least=1)("500ms")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.1, "100ms"), (60, "1m"), (90, "1m30s"), (300, "5m"), (604800, "7d")],
)
def test_a_duration_prints_as_it_is_written(seconds: float, text: str) -> None:
    assert str(Duration(seconds)) == text


@given(st.integers(min_value=0, max_value=10**7))
def test_a_printed_duration_parses_to_the_same_duration(milliseconds: int) -> None:
    written = Duration(milliseconds / 1000)
    assert duration()(str(written)) == pytest.approx(written, abs=0.001)
