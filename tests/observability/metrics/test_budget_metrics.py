"""The exported metrics of tenants' budgets."""

from math import isnan

from observability.metrics.budget_metrics import WINDOW_S, BudgetMetrics
from observability.metrics.families import Families
from observability.metrics.request_metrics import NAMES_TOLD
from observability.traces.request_record import LimitLeft

REQUESTS = LimitLeft("", "requests", 10)


def left_after(left: int) -> LimitLeft:
    return LimitLeft("", "requests", 10, left)


def budget_metric(families: Families, name: str, tenant: str = "a") -> float | None:
    labels = {"tenant": tenant, "model": "", "kind": "requests"}
    return families.registry.get_sample_value(name, labels)


def test_the_whole_budget_is_available_after_a_minute_without_requests() -> None:
    families = Families()
    metrics = BudgetMetrics(families)
    metrics.change({"a": [REQUESTS]})
    metrics.found("a", [left_after(3)], now=100.0)
    metrics.refresh(now=101.0)
    assert budget_metric(families, "antefix_budget_left") == 3
    metrics.refresh(now=101.0 + WINDOW_S)
    assert budget_metric(families, "antefix_budget_left") == 10


def test_a_removed_limit_is_no_longer_exported() -> None:
    families = Families()
    metrics = BudgetMetrics(families)
    metrics.change({"a": [REQUESTS]})
    metrics.refresh(now=0.0)
    metrics.change({})
    metrics.found("a", [left_after(3)], now=1.0)  # one that began before
    metrics.refresh(now=1.0)
    for name in ("antefix_budget_limit", "antefix_budget_left"):
        value = budget_metric(families, name)
        assert value is not None and isnan(value)


def test_only_the_first_of_many_tenants_are_exported() -> None:
    families = Families()
    metrics = BudgetMetrics(families)
    metrics.change({f"{number}": [REQUESTS] for number in range(NAMES_TOLD + 5)})
    metrics.found(f"{NAMES_TOLD + 4}", [left_after(3)], now=0.0)
    metrics.rejected(f"{NAMES_TOLD + 4}", "", "requests")
    metrics.refresh(now=0.0)
    families.buffer.flush()
    assert budget_metric(families, "antefix_budget_left", f"{NAMES_TOLD - 1}") == 10
    for name in ("antefix_budget_left", "antefix_budget_rejections_total"):
        assert budget_metric(families, name, f"{NAMES_TOLD + 4}") is None


def test_the_limits_of_tenants_are_listed_with_the_remaining_budget() -> None:
    metrics = BudgetMetrics(Families())
    concurrent = LimitLeft("large", "concurrent", 2)
    metrics.change({"a": [REQUESTS, concurrent], "b": [REQUESTS]})
    metrics.found("a", [left_after(3)], now=100.0)
    assert metrics.tenants == {"a", "b"}
    assert metrics.left({"a", "nobody"}, now=101.0) == {"a": [left_after(3), concurrent]}
    assert metrics.left({"a"}, now=101.0 + WINDOW_S) == {"a": [left_after(10), concurrent]}
