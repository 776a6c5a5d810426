"""What is wrong with the weights of a fleet's pools, before an engine is started.

Each pool's config.json, weight files and kind of GPU are looked up on this machine, and among the
well-known models that ship, never in a network, and handed to weights.preflight. What is not known
is not checked, and a note says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.errors import Problem
from deployments.fleet.devices import OfferedGpu, devices_of, is_on_cpus
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.models.model_config import model_config, model_folder
from weights.checkpoint import weight_files
from weights.cpu_dtype import CPU_DTYPES
from weights.finding import Device, EngineConfig, Finding, Model
from weights.fits import reserved_for_cache, weight_bytes_of
from weights.known_models import known_config
from weights.memory import DTYPE_BYTES
from weights.model_shape import shape_of
from weights.preflight import findings, overflow_findings

# Where older tools say how they quantized.
_MORE_CONFIGS = ("quant_config.json", "quantize_config.json")


@dataclass
class WeightsCheck:
    """Findings with the way to them in the fleet file, and what was not checked, and why."""

    found: list[tuple[tuple[str, ...], Finding]] = field(default_factory=list)
    unchecked: dict[str, list[str]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        return [f"{', '.join(pools)}: {why}" for why, pools in self.unchecked.items()]


def check_weights(
    fleet: Fleet, offered: Mapping[str, Sequence[OfferedGpu]] | None = None
) -> WeightsCheck:
    """`offered`: by pool, the GPUs that a cluster has for it, where that is known."""
    check = WeightsCheck()
    gpus = offered or {}
    contexts: dict[str, int | None] = {}
    for name, pool in fleet.pools.items():
        engine = _engine_of(pool)
        model = _known(check, name, pool.model, pool.revision, engine)
        contexts[name] = engine.context(model.shape) if model else engine.max_model_len
        if model is not None:
            draft = _draft_of(check, name, engine)
            found = _on_each(
                _devices_of(check, name, pool, gpus.get(name, ())), model, engine, draft
            )
            check.found += [(("pools", name, *each.key.split(".")), each) for each in found]
    for name, pool in fleet.pools.items():
        if pool.overflow is not None:
            to = pool.overflow.to
            for each in overflow_findings(contexts[name], contexts[to], to):
                check.found.append((("pools", name, *each.key.split(".")), each))
    return check


def stored_bytes(pool: Pool) -> int | None:
    """Of the pool's weight files, as a hub has them; None where that is not known here."""
    model = _known(WeightsCheck(), "", pool.model, pool.revision, None)
    if model is None:
        return None
    if model.bytes is not None:
        return model.bytes
    return weight_bytes_of(model, EngineConfig({}, {}))


def cpu_cache_bytes(pool: Pool) -> int | None:
    """Of the KV cache that an engine on CPUs is told to have; None where it is told nothing."""
    reserved = reserved_for_cache(_engine_of(pool), Device("CPU", None))
    return reserved[1] if reserved and is_on_cpus(pool) else None


class WeightsOnCpus(NamedTuple):
    """Bytes; `most` is above `least` where the node's CPU decides the dtype."""

    least: int
    most: int


def bytes_on_cpus(pool: Pool) -> WeightsOnCpus | None:
    """Of the pool's weights in the memory of one process of an engine on CPUs; None where that is
    not known here.
    """
    engine = _engine_of(pool)
    model = _known(WeightsCheck(), "", pool.model, pool.revision, engine)
    if model is None or model.method or engine.quantization:
        return None
    dtypes = (engine.dtype,) if engine.dtype else CPU_DTYPES
    sizes = [DTYPE_BYTES[dtype] for dtype in dtypes if dtype in DTYPE_BYTES]
    if not sizes:
        return None
    processes = pool.tensor_parallel * pool.pipeline_parallel
    least, most = (size * model.shape.parameters // processes for size in (min(sizes), max(sizes)))
    return WeightsOnCpus(least, most)


def _engine_of(pool: Pool) -> EngineConfig:
    return EngineConfig(pool.engine_args, pool.env, pool.tensor_parallel, pool.pipeline_parallel)


def _known(
    check: WeightsCheck, pool: str, name: str, revision: str | None, engine: EngineConfig | None
) -> Model | None:
    """The model, if its config is on this machine and of a kind that can be described."""
    try:
        config = model_config(name, revision) or known_config(name)
        if config is None:
            why = f"not checked: the config of {name} is not on this machine"
        else:
            return _model_of(name, _with_overrides(config, engine))
    except Problem as error:
        why = f"not checked: {error.message}"
    except (AttributeError, TypeError, ValueError):
        why = f"not checked: the config of {name} is not of the usual kind"
    check.unchecked.setdefault(why, []).append(f"pools.{pool}")
    return None


def _with_overrides(config: dict[str, Any], engine: EngineConfig | None) -> dict[str, Any]:
    overrides = engine.args.get("hf_overrides") if engine else None
    found = {**config, **overrides} if isinstance(overrides, Mapping) else dict(config)
    quantization = found.get("quantization_config") or found.get("compression_config")
    found["quantization_config"] = quantization if isinstance(quantization, Mapping) else None
    return found


def _model_of(name: str, config: Mapping[str, Any]) -> Model:
    shape, folder = shape_of(config), model_folder(name)
    if folder is None or not folder.is_dir():
        return Model(name, shape)
    knows_all = not any((folder / more).exists() for more in _MORE_CONFIGS)
    try:
        files = weight_files(folder)
    except Problem:
        # in another format: its size says less, and so may its config
        return Model(name, shape)
    # some folders hold the weights twice, the second time as Mistral writes them
    once = [file for file in files if not file.name.startswith("consolidated")] or files
    return Model(name, shape, sum(file.stat().st_size for file in once), knows_all)


def _draft_of(check: WeightsCheck, pool: str, engine: EngineConfig) -> Model | None:
    named = engine.speculation.get("model") or engine.args.get("spec_model")
    if not isinstance(named, str) or engine.speculation.get("method") in ("ngram", "suffix", "mtp"):
        return None
    revision = engine.speculation.get("revision")
    return _known(check, pool, named, revision if isinstance(revision, str) else None, None)


def _devices_of(
    check: WeightsCheck, name: str, pool: Pool, offered: Sequence[OfferedGpu]
) -> list[Device]:
    devices = devices_of(pool, offered)
    if not devices:
        kind = pool.resources.accelerator_type
        says = "is not set" if kind is None else f"{kind} is not known"
        why = f"kernels and memory not checked: resources.accelerator_type {says}"
        check.unchecked.setdefault(why, []).append(f"pools.{name}")
    return devices


def _on_each(
    devices: list[Device], model: Model, engine: EngineConfig, draft: Model | None
) -> Iterator[Finding]:
    """What is refused on all devices is refused; what is found on some alone is a warning."""
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
