"""docs/metrics.md, generated from the metrics so that it stays up to date.

`python -m observability.metrics.catalogue` prints it; `make reference` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase

from observability.metrics.families import Families
from observability.metrics.replica_families import (
    AdapterFamilies,
    HandoverFamilies,
    ReplicaFamilies,
    SpeculationFamilies,
)

_INTRODUCTION = """\
# Metrics

<!-- Written by `make reference` from observability/metrics/families.py and replica_families.py. -->

Every node that runs a gateway or an engine has one endpoint, `http://HOST:9464/metrics`. Its
address is set with `metrics.host` and `metrics.port` in the fleet file. The endpoint does not
require a key, so let only Prometheus reach it. It reports the metrics of all processes on the node.
When a gateway replaces a dead one, it continues its counters. The metrics of a removed replica stay
for an hour. [Monitoring](monitoring.md) describes how to scrape the endpoint.

Prometheus's label `instance` distinguishes nodes. Sum counters and the gauges of queues over nodes
(`_queue_requests`, `_batch_queued_requests`). Every gateway reports the same value of the other
gauges, so use the maximum.

Times are in seconds. A gauge that is 1 *while* a condition is met is 0 otherwise.
"""


def names() -> dict[str, Metric]:
    """Return every metric of Antefix by its name in Prometheus, including `_total`."""
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name: metric
        for registry in (Families().registry, _replica_registry())
        for metric in registry.collect()
    }


def reference() -> str:
    """Return the whole document."""
    lines = [_INTRODUCTION]
    explained: set[str] = set()
    for title, registry in (
        ("Gateways", Families().registry),
        ("Engine replicas", _replica_registry()),
    ):
        lines += [f"## {title}\n", "| Metric | Type | Labels | Meaning |", "|--|--|--|--|"]
        lines += [*_rows(registry, explained), ""]
    lines.append(_OTHERS)
    return "\n".join(lines)


_OTHERS = """\
The metrics of engine replicas also have the labels `pool` and `replica` (as in `antefix status` and
`x-antefix-replica`). The same endpoint serves **vLLM's metrics**, `vllm:*`, with these labels. See
<https://docs.vllm.ai/en/stable/usage/metrics/>.

## GPUs

The dashboards and alerts use these metrics of NVIDIA's dcgm-exporter:
`DCGM_FI_DEV_GPU_UTIL`, `DCGM_FI_DEV_FB_USED`, `DCGM_FI_DEV_FB_FREE`, `DCGM_FI_DEV_POWER_USAGE`,
`DCGM_FI_DEV_GPU_TEMP`. <https://docs.nvidia.com/datacenter/dcgm/latest/gpu-telemetry/dcgm-exporter.html>
"""


def _replica_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    families = ReplicaFamilies(registry)
    # created when they are requested
    assert families.prefill and families.calibrated and families.tier_load
    SpeculationFamilies(registry)
    AdapterFamilies(registry)
    HandoverFamilies(registry)
    return registry


def _rows(registry: CollectorRegistry, explained: set[str]) -> Iterator[str]:
    """A row for each metric. One in `explained` is not explained again; others are added to it."""
    for family in registry._collector_to_names:
        assert isinstance(family, MetricWrapperBase)
        (metric,) = family.collect()
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = ", ".join(f"`{label}`" for label in family._labelnames)
        meaning = "See above." if name in explained else metric.documentation
        explained.add(name)
        yield f"| `{name}` | {metric.type} | {labels} | {meaning} |"


if __name__ == "__main__":
    print(reference(), end="")
