"""Every series that a fleet's Prometheus has: Antefix's, vLLM's, the recorded ones, the GPUs'."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from observability.alerts import rules
from observability.alerts.slo_file import load
from observability.metrics.families import Families
from observability.metrics.replica_families import (
    AdapterFamilies,
    HandoverFamilies,
    ReplicaFamilies,
    SpeculationFamilies,
)

GPU = {
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP",
}
_VLLM_LABELS = ("model_name", "engine", "pool", "replica")
_VLLM_MORE = {
    "vllm:request_success": "finished_reason",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "position",
    "vllm:prompt_tokens_by_source": "source",
}
_SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}


@dataclass(frozen=True)
class Family:
    name: str
    kind: str
    labels: tuple[str, ...]

    @property
    def series(self) -> list[str]:
        return [self.name + suffix for suffix in _SUFFIXES[self.kind]]


def antefix_families() -> list[Family]:
    gateway, replica = Families(), ReplicaFamilies(CollectorRegistry())
    _ = replica.prefill, replica.calibrated, replica.tier_load
    speculation = SpeculationFamilies(CollectorRegistry())
    adapters = AdapterFamilies(CollectorRegistry())
    handovers = HandoverFamilies(CollectorRegistry())
    whose = ("pool", "replica")
    return [
        Family(described.name, described.type, (*metric._labelnames, *more))
        for families, more in (
            (gateway, ()),
            (gateway.shared, ()),
            (replica, whose),
            (speculation, whose),
            (adapters, whose),
            (handovers, whose),
        )
        for metric in vars(families).values()
        if isinstance(metric, MetricWrapperBase)
        for described in metric.describe()
    ]


def of_vllm() -> list[Family]:
    """By its source: to make them, it would have to be started."""
    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    v1 = package / "v1"
    text = (v1 / "metrics" / "loggers.py").read_text()
    text += (v1 / "spec_decode" / "metrics.py").read_text()
    made = re.findall(r'_(gauge|counter|histogram)_cls\(\s*name="(vllm:\w+)"', text)
    made += [("counter", name) for name in re.findall(r'\("(vllm:spec_decode_\w+)",', text)]
    connectors = package / "distributed" / "kv_transfer" / "kv_connector" / "v1"
    text = (connectors / "offloading" / "metrics.py").read_text()
    made += [
        ("counter", name) for name in re.findall(r'"(vllm:kv_offload_\w+_(?:bytes|time))"', text)
    ]
    return [
        Family(name, kind, (*_VLLM_LABELS, *([more] if (more := _VLLM_MORE.get(name)) else [])))
        for kind, name in made
    ]


def of_gpus() -> list[Family]:
    return [Family(name, "gauge", ("Hostname", "gpu")) for name in sorted(GPU)]


def recorded() -> set[str]:
    groups = yaml.safe_load(rules.render(load()))["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def all_series() -> set[str]:
    exposed = {
        series
        for family in [*antefix_families(), *of_vllm(), *of_gpus()]
        for series in family.series
    }
    return exposed | recorded() | {"ALERTS", "up"}
