"""Kubernetes' HorizontalPodAutoscaler: the examples of its documentation, and sums by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.hpa import (
    HorizontalPodAutoscaler,
    ScalingPolicy,
    ScalingRules,
    desired_by_pods,
    desired_by_total,
)


@pytest.mark.parametrize(
    ("metrics", "target", "desired"),
    [
        # the documentation's: 200m of 100m doubles, 50m halves
        ([0.2, 0.2, 0.2], 0.1, 6),
        ([0.05, 0.05, 0.05, 0.05], 0.1, 2),
        # ceil(3 * 4/3), of an average of 4
        ([1.0, 4.0, 7.0], 3.0, 4),
        # ceil(3 * 0.5)
        ([1.0, 1.0, 1.0], 2.0, 2),
        # nothing waits
        ([0.0, 0.0], 5.0, 0),
        # within the tolerance of a tenth, and beyond it
        ([10.9, 10.9], 10.0, 2),
        ([11.2, 11.2], 10.0, 3),
        ([9.1, 9.1], 10.0, 2),
        # exactly eight times the target is eight, whatever floats make of it
        ([8.8], 1.1, 8),
    ],
)
def test_the_replica_count_follows_the_ratio_to_the_target(
    metrics: list[float], target: float, desired: int
) -> None:
    assert desired_by_pods(len(metrics), metrics, 0, target) == desired


@pytest.mark.parametrize(
    ("metrics", "missing", "desired"),
    [
        # up, with two that load counted as 0: 40 / 10 = 4, which exist already
        ([20.0, 20.0], 2, 4),
        # 60 / 10
        ([30.0, 30.0], 2, 6),
        # 22 / 3 is below the target: it would go down, so nothing
        ([11.0, 11.0], 1, 3),
        # down, with two that load counted as the target: (2 + 2 + 10 + 10) / 10, up
        ([2.0, 2.0], 2, 3),
        # (8 + 10) / 20 is within the tolerance
        ([8.0], 1, 2),
        # no pod has metrics
        ([], 3, 3),
    ],
)
def test_pods_without_metrics_dampen_scaling(
    metrics: list[float], missing: int, desired: int
) -> None:
    assert desired_by_pods(len(metrics) + missing, metrics, missing, 10.0) == desired


def test_a_total_is_divided_by_its_target() -> None:
    assert desired_by_total(2, 50.0, 10.0) == 5
    # 21 of 20 is within the tolerance
    assert desired_by_total(2, 21.0, 10.0) == 2
    assert desired_by_total(2, 0.0, 10.0) == 0
    assert desired_by_total(0, 1.0, 10.0) == 1


def test_hpa_adds_four_replicas_or_doubles_them_within_15_s() -> None:
    hpa = HorizontalPodAutoscaler(1, 100)
    course, replicas = [], 1
    for sync in range(5):
        replicas = hpa.replicas(replicas, 100, 15.0 * sync)
        course.append(replicas)
    assert course == [5, 10, 20, 40, 80]


def test_within_one_period_the_policies_count_what_was_added_in_it() -> None:
    hpa = HorizontalPodAutoscaler(1, 100)
    assert hpa.replicas(10, 100, 0.0) == 20
    # another sync in the same 15 s: from the ten there were at its begin no more than 20
    assert hpa.replicas(20, 100, 5.0) == 20
    assert hpa.replicas(20, 100, 15.0) == 40


def test_hpa_scales_down_to_the_highest_recommendation_of_five_minutes() -> None:
    hpa = HorizontalPodAutoscaler(1, 10)
    wanted = {0.0: 8, 15.0: 6, 30.0: 2}
    course = {}
    replicas = 8
    for sync in range(24):
        now = 15.0 * sync
        replicas = hpa.replicas(replicas, wanted.get(now, 2), now)
        course[now] = replicas
    assert course[285.0] == 8
    assert course[300.0] == 6
    assert course[315.0] == 2


def test_the_initial_replicas_are_held_for_five_minutes() -> None:
    hpa = HorizontalPodAutoscaler(1, 10)
    course: list[int] = []
    for sync in range(22):
        course.append(hpa.replicas(course[-1] if course else 4, 0, 15.0 * sync))
    assert course[:20] == [4] * 20
    assert course[20] == 1


def test_hpa_scales_down_as_in_the_example_of_the_kubernetes_docs() -> None:
    # 4 pods or 10 percent a minute: from 80 to 72, then 7.2 rounded up; below 40 it is four
    policies = (ScalingPolicy("Pods", 4, 60.0), ScalingPolicy("Percent", 10, 60.0))
    hpa = HorizontalPodAutoscaler(1, 100, down=ScalingRules(0.0, policies))
    course, replicas = [80], 80
    while replicas > 10:
        replicas = hpa.replicas(replicas, 10, 60.0 * len(course))
        course.append(replicas)
    assert course[:3] == [80, 72, 64]
    below = [replicas for replicas in course if replicas <= 40]
    assert {before - after for before, after in pairwise(below[:-1])} == {4}
    assert course[-1] == 10


def test_a_scale_up_window_uses_the_lowest_recommendation() -> None:
    up = ScalingRules(60.0, (ScalingPolicy("Pods", 10, 15.0),))
    hpa = HorizontalPodAutoscaler(1, 10, up=up)
    course, replicas = [], 2
    for sync in range(6):
        replicas = hpa.replicas(replicas, 6, 15.0 * sync)
        course.append(replicas)
    assert course == [2, 2, 2, 2, 6, 6]


def test_hpa_respects_its_bounds() -> None:
    hpa = HorizontalPodAutoscaler(2, 5)
    assert hpa.replicas(4, 50, 0.0) == 5
    assert hpa.replicas(1, 1, 15.0) == 2
    assert hpa.replicas(9, 9, 30.0) == 5
