"""Faults of the weights of a fleet's pools, before an engine starts.

Each pool's config.json, weight files and GPU kind are looked up on this machine and among the
built-in well-known models, never in a network. weights.kernels.preflight evaluates them. Unknown
facts are not checked, and a note reports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deployments.fleet.devices import OfferedGpu, devices_of, is_on_cpus
from deployments.fleet.fleet import Fleet
from deployments.fleet.model_lookup import (
    NamedModel,
    Unknown,
    draft_model,
    engine_of,
    look_up,
    pool_model,
)
from deployments.fleet.pool import Pool
from weights.kernels.finding import Device, EngineConfig, Finding, Model
from weights.kernels.fits import memory_unknown, reserved_for_cache
from weights.kernels.preflight import findings, overflow_findings
from weights.model.cpu_dtype import CPU_DTYPES
from weights.model.memory import DTYPE_BYTES


@dataclass
class WeightsCheck:
    """Findings with their keys in the fleet file, and skipped checks with the reason."""

    found: list[tuple[tuple[str, ...], Finding]] = field(default_factory=list)
    unchecked: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, why: str, pool: str) -> None:
        pools = self.unchecked.setdefault(why, [])
        if f"pools.{pool}" not in pools:
            pools.append(f"pools.{pool}")

    @property
    def notes(self) -> list[str]:
        return [f"{', '.join(pools)}: {why}" for why, pools in self.unchecked.items()]


def check_weights(
    fleet: Fleet, offered: Mapping[str, Sequence[OfferedGpu]] | None = None
) -> WeightsCheck:
    """Check a fleet. `offered`: by pool, the GPUs that a cluster has for it, if known."""
    check = WeightsCheck()
    gpus = offered or {}
    contexts: dict[str, int | None] = {}
    for name, pool in fleet.pools.items():
        engine = engine_of(pool)
        model = _known(check, name, pool_model(pool), engine)
        contexts[name] = engine.context(model.shape) if model else engine.max_model_len
        if model is not None:
            draft = draft_model(pool)
            known_draft = None if draft is None else _known(check, name, draft, None)
            devices = _devices_of(check, name, pool, gpus.get(name, ()))
            for device in devices:
                if why := memory_unknown(model, engine, device):
                    check.leave_out(f"memory not checked: {why}", name)
            found = _on_each(devices, model, engine, known_draft)
            check.found += [(("pools", name, *each.key.split(".")), each) for each in found]
    for name, pool in fleet.pools.items():
        if pool.overflow is not None:
            to = pool.overflow.to
            for each in overflow_findings(contexts[name], contexts[to], to):
                check.found.append((("pools", name, *each.key.split(".")), each))
    return check


def cpu_cache_bytes(pool: Pool) -> int | None:
    """Return the bytes of KV cache that an engine on CPUs is set to use; None if unset."""
    reserved = reserved_for_cache(engine_of(pool), Device("CPU", None))
    return reserved[1] if reserved and is_on_cpus(pool) else None


class WeightsOnCpus(NamedTuple):
    """Bytes; `most` exceeds `least` if the node's CPU decides the dtype."""

    least: int
    most: int


def bytes_on_cpus(pool: Pool) -> WeightsOnCpus | None:
    """Return the bytes of the pool's weights in one process of an engine on CPUs; None if
    unknown."""
    engine = engine_of(pool)
    model = look_up(pool_model(pool), engine)
    if isinstance(model, Unknown) or model.method or engine.quantization:
        return None
    dtypes = (engine.dtype,) if engine.dtype else CPU_DTYPES
    sizes = [DTYPE_BYTES[dtype] for dtype in dtypes if dtype in DTYPE_BYTES]
    if not sizes:
        return None
    processes = pool.tensor_parallel * pool.pipeline_parallel
    least, most = (size * model.shape.parameters // processes for size in (min(sizes), max(sizes)))
    return WeightsOnCpus(least, most)


def _known(
    check: WeightsCheck, pool: str, named: NamedModel, engine: EngineConfig | None
) -> Model | None:
    found = look_up(named, engine)
    if isinstance(found, Model):
        return found
    check.leave_out(found.why, pool)
    return None


def _devices_of(
    check: WeightsCheck, name: str, pool: Pool, offered: Sequence[OfferedGpu]
) -> list[Device]:
    devices = devices_of(pool, offered)
    if not devices:
        kind = pool.resources.accelerator_type
        says = "is not set" if kind is None else f"{kind} is unknown"
        why = f"kernels and memory not checked: resources.accelerator_type {says}"
        check.leave_out(why, name)
    return devices


def _on_each(
    devices: list[Device], model: Model, engine: EngineConfig, draft: Model | None
) -> Iterator[Finding]:
    """Yield errors found on all devices, and warnings for those found only on some."""
    if len(devices) < 2:
        yield from findings(model, engine, devices[0] if devices else None, draft)
        return
    found = [(device, findings(model, engine, device, draft)) for device in devices]
    everywhere = set.intersection(*({_kind(each) for each in those} for _, those in found))
    seen: set[tuple[str, str]] = set()
    for device, those in found:
        for each in those:
            if _kind(each) in everywhere and device is devices[0]:
                yield each
            elif _kind(each) not in everywhere and (each.rule, each.key) not in seen:
                words = f"on the {device.name}, {each.message}"
                yield Finding(each.rule, False, each.key, each.value, words, each.remedy)
        seen |= {(each.rule, each.key) for each in those}


def _kind(finding: Finding) -> tuple[str, str, bool]:
    return finding.rule, finding.key, finding.refuses
