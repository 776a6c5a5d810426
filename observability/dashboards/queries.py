"""Forms of PromQL for the dashboards.

A fleet has several gateways and nodes, so every query aggregates over `instance`: counters and
histograms by sum, values that each gateway repeats by max. If nothing may have been counted yet,
`or_none` draws a zero instead of an empty panel. A ratio of nothing to nothing is 0, not NaN. `by`:
labels to keep, separated by commas; none: one series.
"""

from __future__ import annotations

import re

POOL = 'pool=~"$pool"'
REPLICA = 'pool=~"$pool", replica=~"$replica"'
TENANT = 'tenant=~"$tenant", pool=~"$pool"'
FAILED = 'outcome=~"failed|deadline"'

_BY = re.compile(r"\bby \((?:le, )?(?P<labels>[^)]+)\)")


def rate(counter: str, by: str = "", matchers: str = POOL) -> str:
    """Return a rate per second, summed over all instances."""
    return _of("sum", by, f"rate({counter}{{{matchers}}}[$__rate_interval])")


def total(counter: str, by: str = "", matchers: str = POOL) -> str:
    """Return the increase in the time range of the dashboard."""
    return _of("sum", by, f"increase({counter}{{{matchers}}}[$__range])")


def quantile(q: float, histogram: str, by: str, matchers: str = POOL) -> str:
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', f'le, {by}', matchers)})"


def median_and_tail(histogram: str, by: str, matchers: str = POOL) -> dict[str, str]:
    """Return the p50 and the p99, by the names of their series."""
    values = {f"p{q * 100:.0f}": quantile(q, histogram, by, matchers) for q in (0.5, 0.99)}
    return {f"{name} {legend(expr)}": expr for name, expr in values.items()}


def mean(histogram: str, by: str = "", matchers: str = POOL) -> str:
    parts = (rate(f"{histogram}_{part}", by, matchers) for part in ("sum", "count"))
    return ratio(*parts)


def highest(gauge: str, by: str = "", matchers: str = POOL) -> str:
    """Return the maximum of a value that every gateway reports, or of the worst gateway."""
    return _of("max", by, f"{gauge}{{{matchers}}}")


def lowest(gauge: str, by: str = "", matchers: str = POOL) -> str:
    return _of("min", by, f"{gauge}{{{matchers}}}")


def added(gauge: str, by: str = "", matchers: str = POOL) -> str:
    """Return the sum of a value that each gateway or replica reports for itself."""
    return _of("sum", by, f"{gauge}{{{matchers}}}")


def ratio(part: str, whole: str) -> str:
    """Return the ratio of two expressions with the same labels; 0 if there is no whole."""
    return f"{part} / clamp_min({whole}, 1e-9)"


def portion(counter: str, by: str, chosen: str, matchers: str = POOL) -> str:
    """Return the share of a counter in the series with `chosen`; 0 if there are none yet."""
    return portion_of(rate(counter, by, f"{matchers}, {chosen}"), rate(counter, by, matchers))


def portion_of(part: str, whole: str) -> str:
    return ratio(f"({part} or 0 * {whole})", whole)


def or_none(expr: str, label: str, words: str = "none") -> str:
    """Return `expr`, or one zero whose `label` explains why it is empty."""
    return f'{expr} or on() label_replace(vector(0), "{label}", "{words}", "", "")'


def labels(expr: str) -> list[str]:
    """Return the labels that the series of an expression have: those of its first `by`."""
    found = _BY.search(expr)
    return found["labels"].split(", ") if found else []


def legend(expr: str) -> str:
    """Return the name of a series in Grafana: the values of its labels."""
    return " ".join(f"{{{{{label}}}}}" for label in labels(expr))


def _of(aggregate: str, by: str, expr: str) -> str:
    return f"{aggregate} by ({by}) ({expr})" if by else f"{aggregate}({expr})"
