"""The roofline against measurements of others: how far off it is, and that it gets no worse."""

from statistics import median

import pytest

from tests.weights.published import Point, points

SAID = [point for point in points() if not point.is_outlier]


def name(point: Point) -> str:
    data = point.data
    return f"{data['name']}, {data['measure']} of {data['model'].rpartition('/')[2]}"


@pytest.mark.parametrize("point", SAID, ids=name)
def test_no_point_is_further_off_than_the_documentation_says(point: Point) -> None:
    assert -0.10 < point.error < 0.45


def test_half_of_the_points_are_within_a_tenth() -> None:
    assert median(abs(point.error) for point in SAID) < 0.10


def test_the_points_are_of_both_gpus_and_of_every_kind() -> None:
    assert len(SAID) >= 20
    assert {point.data["gpu"] for point in SAID} == {"a100-80g", "a100-40g", "h100"}
    assert {point.data["measure"] for point in SAID} == {"rate", "ttft", "tpot", "kv_gib"}
