"""Prometheus sees a canary's share, and that it was aborted."""

from __future__ import annotations

from math import isnan

from observability.metrics.canary_metrics import CanaryMetrics, CanaryReading
from observability.metrics.families import Families


def test_a_canary_is_reported_until_it_is_removed() -> None:
    families = Families()
    metrics = CanaryMetrics(families)

    def found(name: str, model: str) -> float:
        value = families.registry.get_sample_value(f"antefix_canary_{name}", {"model": model})
        assert value is not None
        return value

    metrics.refresh({"a": CanaryReading(0.05, False), "b": CanaryReading(0.0, True)})
    assert (found("share_ratio", "a"), found("aborted", "a")) == (0.05, 0)
    assert (found("share_ratio", "b"), found("aborted", "b")) == (0, 1)
    metrics.refresh({"a": CanaryReading(1.0, False)})
    assert (found("share_ratio", "a"), found("aborted", "a")) == (1, 0)
    assert isnan(found("share_ratio", "b")) and isnan(found("aborted", "b"))
