"""Prometheus' rules from an SLO file: the same file gives the same text, byte for byte.

For each SLO there are the recording rules of Sloth, with its names, and one series per pool: error
ratios over its windows, objective, budget, burn rates, and the rest of the period's budget. Alerts
use the multi-window, multi-burn-rate scheme of the SRE Workbook (`slo.BURNS`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from observability.alerts.slo_file import (
    PERIOD,
    SEVERITIES,
    WINDOW,
    Level,
    Limit,
    RatioSlo,
    SloFile,
)

Rule = dict[str, Any]

SHORT = "5m"
WINDOWS = (SHORT, "30m", "1h", "2h", "6h", "1d", "3d")

# Used more than once, or too slow to compute in a panel. Times are seconds over five minutes.
POOL_RECORDS = {
    "pool_priority:antefix_ttft_seconds:p50_rate5m": "histogram_quantile(0.5,"
    " sum by (pool, priority, le) (rate(antefix_ttft_seconds_bucket[5m])))",
    "pool_priority:antefix_ttft_seconds:p99_rate5m": "histogram_quantile(0.99,"
    " sum by (pool, priority, le) (rate(antefix_ttft_seconds_bucket[5m])))",
    "pool:antefix_cached_tokens:hit_ratio_rate5m": "sum by (pool)"
    ' (rate(antefix_cached_tokens_total{source="confirmed"}[5m]))'
    " / clamp_min(sum by (pool) (rate(antefix_prompt_tokens_total[5m])), 1e-9)",
}

HEADER = "# Written by `antefix slo render`. Change the SLO file and render it again.\n"


def render(slo_file: SloFile) -> str:
    """Return the rule file, as YAML."""
    return HEADER + yaml.dump(
        {"groups": _groups(slo_file)}, Dumper=_Dumper, sort_keys=False, width=1000
    )


def alerts(slo_file: SloFile) -> list[Rule]:
    """Return every alerting rule, in the order of the file."""
    burning = [alert for slo in slo_file.slos for alert in _burn_alerts(slo_file, slo)]
    return burning + [
        alert for level in slo_file.levels for alert in _level_alerts(slo_file, level)
    ]


def _groups(slo_file: SloFile) -> list[Rule]:
    records = [{"record": name, "expr": expr} for name, expr in POOL_RECORDS.items()]
    groups: list[Rule] = [{"name": f"{slo_file.service}-pools", "rules": records}]
    groups += [
        {"name": f"{slo_file.service}-slo-{slo.name}", "rules": list(_slo_records(slo_file, slo))}
        for slo in slo_file.slos
    ]
    return [*groups, {"name": f"{slo_file.service}-alerts", "rules": alerts(slo_file)}]


def _slo_records(slo_file: SloFile, slo: RatioSlo) -> Iterator[Rule]:
    labels = {"slo": slo.name, "service": slo_file.service, **slo_file.labels, **slo.labels}

    def record(name: str, expr: str) -> Rule:
        return {"record": name, "expr": expr, "labels": labels}

    def recorded(name: str) -> str:
        return f"{name}{_selector(slo_file, slo)}"

    yield record(f"slo:sli_bad:rate{SHORT}", _bad(slo, SHORT))
    yield record(f"slo:sli_all:rate{SHORT}", _all(slo, SHORT))
    for window in WINDOWS:
        # without requests the ratio is 0, not 0 / 0
        ratio = f"({_bad(slo, window)}) / clamp_min({_all(slo, window)}, 1e-9)"
        yield record(f"slo:sli_error:ratio_rate{window}", ratio)
    # The events of a month, from their recorded rates: reading every sample takes too long. A mean
    # of ratios, as in Sloth, would weigh a quiet night like a busy day.
    yield record(
        f"slo:sli_error:ratio_rate{PERIOD}",
        f"sum_over_time({recorded(f'slo:sli_bad:rate{SHORT}')}[{PERIOD}])"
        f" / clamp_min(sum_over_time({recorded(f'slo:sli_all:rate{SHORT}')}[{PERIOD}]), 1e-9)",
    )
    # one series per pool, so that a panel filters all series of an SLO alike
    each_pool = f"0 * {recorded(f'slo:sli_error:ratio_rate{SHORT}')}"
    yield record("slo:objective:ratio", f"{each_pool} + {1 - slo.budget:.9g}")
    yield record("slo:error_budget:ratio", f"{each_pool} + {slo.budget:.9g}")
    for name, window in (("current", SHORT), ("period", PERIOD)):
        ratio = recorded(f"slo:sli_error:ratio_rate{window}")
        yield record(f"slo:{name}_burn_rate:ratio", f"{ratio} / {slo.budget:.9g}")
    yield record(
        "slo:period_error_budget_remaining:ratio", f"1 - {recorded('slo:period_burn_rate:ratio')}"
    )


def _all(slo: RatioSlo, window: str) -> str:
    return slo.sli.events.total_query.replace(WINDOW, window)


def _bad(slo: RatioSlo, window: str) -> str:
    """Return 0 for a pool that has had events and no bad one yet."""
    return f"{slo.sli.events.error_query.replace(WINDOW, window)} or 0 * {_all(slo, window)}"


def _selector(slo_file: SloFile, slo: RatioSlo) -> str:
    return f'{{slo="{slo.name}", service="{slo_file.service}"}}'


def _burn_alerts(slo_file: SloFile, slo: RatioSlo) -> Iterator[Rule]:
    selector = _selector(slo_file, slo)
    for severity in SEVERITIES:
        conditions = []
        for factor, *windows in slo.burns(severity):
            limit = f" > {factor * slo.budget:.9g}"
            both = (f"slo:sli_error:ratio_rate{window}{selector}{limit}" for window in windows)
            conditions.append(f"({' and '.join(both)})")
        if conditions:
            alerting, of = slo.alerting, slo.alerting.of(severity)
            yield {
                "alert": alerting.name,
                "expr": "\nor ".join(conditions),
                "labels": {
                    "severity": severity,
                    "slo": slo.name,
                    "service": slo_file.service,
                    **slo_file.labels,
                    **slo.labels,
                    **alerting.labels,
                    **of.labels,
                },
                "annotations": {
                    **_annotations(slo_file, alerting.name, slo.description),
                    **alerting.annotations,
                    **of.annotations,
                },
            }


def _level_alerts(slo_file: SloFile, level: Level) -> Iterator[Rule]:
    for severity in SEVERITIES:
        limit = level.limit(severity)
        if limit is not None:
            yield {
                "alert": level.name,
                "expr": _beyond(level.query, limit),
                "for": limit.for_,
                "labels": {
                    "severity": severity,
                    "service": slo_file.service,
                    **slo_file.labels,
                    **level.labels,
                },
                "annotations": {
                    **_annotations(slo_file, level.name, level.description),
                    **level.annotations,
                },
            }


def _beyond(query: str, limit: Limit) -> str:
    ends = ((" > ", limit.above), (" < ", limit.below))
    return "\nor ".join(f"({query}){sign}{end:.9g}" for sign, end in ends if end is not None)


def _annotations(slo_file: SloFile, alert: str, description: str) -> dict[str, str]:
    return {
        "summary": description,
        "description": description,
        "runbook_url": f"{slo_file.runbook_base.rstrip('/')}/{alert}.md",
    }


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such, and no aliases, for readability."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
