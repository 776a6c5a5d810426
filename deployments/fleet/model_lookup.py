"""Look up the models of a pool on this machine, without a network.

A config.json is searched in the model's folder, in the Hub's cache, and among the built-in
well-known models.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from common.errors import Problem
from deployments.fleet.pool import Pool
from deployments.models.model_config import model_config, model_folder
from weights.kernels.finding import EngineConfig, Model
from weights.model.checkpoint import weight_files
from weights.model.known_models import known_config
from weights.model.model_shape import shape_of

# Files in which older tools describe their quantization.
_MORE_CONFIGS = ("quant_config.json", "quantize_config.json")
# Methods whose drafts need no weights, or only the model's.
_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix", "mtp")


class NamedModel(NamedTuple):
    """A folder, an id of the Hub or a URL, and the Hub's revision."""

    name: str
    revision: str | None = None


class Unknown(NamedTuple):
    """An unknown model. `why` completes "pools.chat: "."""

    why: str


def engine_of(pool: Pool) -> EngineConfig:
    return EngineConfig(pool.engine_args, pool.env, pool.tensor_parallel, pool.pipeline_parallel)


def pool_model(pool: Pool) -> NamedModel:
    return NamedModel(pool.model, pool.revision)


def draft_model(pool: Pool) -> NamedModel | None:
    """Return the draft model of the pool; None if it has none with weights."""
    engine = engine_of(pool)
    named = engine.speculation.get("model") or engine.args.get("spec_model")
    if not isinstance(named, str) or engine.speculation.get("method") in _WITHOUT_WEIGHTS:
        return None
    revision = engine.speculation.get("revision")
    return NamedModel(named, revision if isinstance(revision, str) else None)


def look_up(model: NamedModel, engine: EngineConfig | None = None) -> Model | Unknown:
    """Return the model if its config is on this machine and of a supported kind.

    `engine`'s hf_overrides are applied to it.
    """
    try:
        config = model_config(model.name, model.revision) or known_config(model.name)
        if config is None:
            return Unknown(f"not checked: the config of {model.name} is not on this machine")
        return _described(model.name, _with_overrides(config, engine))
    except Problem as error:
        return Unknown(f"not checked: {error.message}")
    except (AttributeError, TypeError, ValueError):
        return Unknown(f"not checked: the config of {model.name} is not of the usual kind")


def _with_overrides(config: dict[str, Any], engine: EngineConfig | None) -> dict[str, Any]:
    overrides = engine.args.get("hf_overrides") if engine else None
    found = {**config, **overrides} if isinstance(overrides, Mapping) else dict(config)
    quantization = found.get("quantization_config") or found.get("compression_config")
    found["quantization_config"] = quantization if isinstance(quantization, Mapping) else None
    return found


def _described(name: str, config: Mapping[str, Any]) -> Model:
    shape, folder = shape_of(config), model_folder(name)
    if folder is None or not folder.is_dir():
        return Model(name, shape)
    knows_all = not any((folder / more).exists() for more in _MORE_CONFIGS)
    try:
        files = weight_files(folder)
    except Problem:
        # another format, whose size says less, and perhaps its config too
        return Model(name, shape)
    # some folders have the weights twice, the second time in Mistral's format
    once = [file for file in files if not file.name.startswith("consolidated")] or files
    return Model(name, shape, sum(file.stat().st_size for file in once), knows_all)
