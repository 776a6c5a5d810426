"""The roofline against measurements of others: how far off it is, and that it gets no worse."""

from statistics import median

import pytest

from tests.weights.published import Point, points

SAID = [point for point in points() if not point.is_outlier]


def name(point: Point) -> str:
    data = point.data
    return f"{data['name']}, {data['measure']} of {data['model'].rpartition('/')[2]}"


@pytest.mark.parametrize("point", SAID, ids=name)
def test_no_prediction_error_exceeds_the_documented_one(point: Point) -> None:
    assert -0.10 < point.error < 0.45


def test_half_of_the_predictions_are_within_ten_percent() -> None:
    assert median(abs(point.error) for point in SAID) < 0.10


def test_the_published_points_cover_every_gpu_and_every_measure() -> None:
    assert len(SAID) >= 20
    assert {point.data["gpu"] for point in SAID} == {"a100-80g", "a100-40g", "h100"}
    assert {point.data["measure"] for point in SAID} == {"rate", "ttft", "tpot", "kv_gib"}
