"""What is measured of an engine, and the line through it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.gateway.calibrating import line
from common.errors import Problem
from simulator import engine_profile


def test_a_line_is_fitted_to_the_measurements() -> None:
    assert line([(1, 3.0), (2, 5.0), (4, 9.0)]) == pytest.approx((1.0, 2.0))
    assert line([(4, 0.25)]) == (0.25, 0.0)


def test_the_fitted_time_never_decreases_with_more_work() -> None:
    assert line([(1, 3.0), (2, 2.0)]) == (2.5, 0.0)


def test_the_fitted_line_never_begins_below_zero() -> None:
    assert line([(1, 1.0), (2, 3.0)]) == pytest.approx((0.0, 1.4))


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0.0, 10)), min_size=2, unique_by=lambda p: p[0]
    )
)
def test_neither_the_intercept_nor_the_slope_is_negative(points: list[tuple[float, float]]) -> None:
    begin, slope = line(points)
    assert begin >= 0.0
    assert slope >= 0.0


def test_a_written_profile_is_read_again(tmp_path: Path) -> None:
    shipped = engine_profile.read(engine_profile.SHIPPED)
    (tmp_path / "mine.json").write_bytes(engine_profile.to_json(shipped))
    assert engine_profile.read(tmp_path / "mine.json") == shipped


def test_a_profile_may_have_the_rates_of_loads_from_tiers(tmp_path: Path) -> None:
    shipped, file = engine_profile.read(engine_profile.SHIPPED), tmp_path / "mine.json"
    rates = (shipped.host_load_rate, shipped.disk_load_rate, shipped.peer_load_rate)
    assert rates == (None, None, None)
    mine = msgspec.structs.replace(shipped, host_load_rate=90_000.0, peer_load_rate=20_000.0)
    file.write_bytes(engine_profile.to_json(mine))
    assert engine_profile.read(file) == mine
    file.write_bytes(engine_profile.to_json(msgspec.structs.replace(mine, disk_load_rate=0.0)))
    with pytest.raises(Problem, match="disk_load_rate must be above 0"):
        engine_profile.read(file)
