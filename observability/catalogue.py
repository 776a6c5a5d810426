"""docs/metrics.md, written from the metrics themselves so that it cannot go stale.

`python -m observability.catalogue` prints it; `make reference` puts it in its place.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase

from observability.families import Families
from observability.replica_families import ReplicaFamilies, SpeculationFamilies

_INTRODUCTION = """\
# Metrics

<!-- Written by `make reference` from observability/families.py and replica_families.py. -->

Every node with a gateway or an engine has one endpoint, `http://HOST:9464/metrics` (`metrics.host`
and `metrics.port` of the fleet file), without a key: let only Prometheus reach it. It tells what
all processes of the node have counted, from files that outlive them: a gateway that takes a dead
one's place goes on counting where that ended, and the counts of a replica that is gone are told
for another hour. [monitoring.md](monitoring.md) has the scrape configuration.

Nodes are told apart by Prometheus's own label `instance`. Counters are added up over them; so are
gauges of what gateways hold (`_queue_requests`, `_batch_waiting_requests`). Of the
other gauges every gateway tells the same: take the maximum.

Times are seconds. A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`.
"""


def names() -> dict[str, Metric]:
    """Every metric of ours by its name in Prometheus, `_total` included."""
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name: metric
        for registry in (Families().registry, _replica_registry())
        for metric in registry.collect()
    }


def reference() -> str:
    """The whole document."""
    lines = [_INTRODUCTION]
    for title, registry in (
        ("Of gateways", Families().registry),
        ("Of engine replicas", _replica_registry()),
    ):
        lines += [f"## {title}\n", "| metric | type | labels | meaning |", "|--|--|--|--|"]
        lines += [*_rows(registry), ""]
    lines.append(_OTHERS)
    return "\n".join(lines)


_OTHERS = """\
Engine replicas have the labels `pool` and `replica` (the name in `antefix status` and in
`x-antefix-replica`), and so have **all of vLLM's own metrics**, `vllm:*`, through the same
endpoint: <https://docs.vllm.ai/en/stable/usage/metrics/>.

## Of GPUs

The dashboards and alerts take them from NVIDIA's dcgm-exporter, by its names:
`DCGM_FI_DEV_GPU_UTIL`, `DCGM_FI_DEV_FB_USED`, `DCGM_FI_DEV_FB_FREE`, `DCGM_FI_DEV_POWER_USAGE`,
`DCGM_FI_DEV_GPU_TEMP`. <https://docs.nvidia.com/datacenter/dcgm/latest/gpu-telemetry/dcgm-exporter.html>
"""


def _replica_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    families = ReplicaFamilies(registry)
    assert families.prefill and families.calibrated  # made when they are asked for
    SpeculationFamilies(registry)
    return registry


def _rows(registry: CollectorRegistry) -> Iterator[str]:
    for family in registry._collector_to_names:
        assert isinstance(family, MetricWrapperBase)
        (metric,) = family.collect()
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = ", ".join(f"`{label}`" for label in family._labelnames)
        yield f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |"


if __name__ == "__main__":
    print(reference(), end="")
