"""Divisibility of heads, widths and quantization groups by the tensor-parallel degree.

As in vLLM 0.32, below vllm/: config/model.py `verify_with_parallel_config` (heads),
model_executor/layers/linear.py `QKVParallelLinear` (key heads: split, or copied a whole number of
times) and `divide`, distributed/utils.py `verify_group_size_divides_partition`, and
model_executor/layers/quantization/utils/fp8_utils.py `validate_fp8_block_shape`. Vocabularies are
padded. Experts with uneven groups use a slower kernel (marlin_utils.py
`check_moe_marlin_supports_config`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from weights.kernels.finding import EngineConfig, Finding, Model
from weights.kernels.kernels import Stored, config_groups
from weights.model.model_shape import Linear, ModelShape

_DEGREES = range(1, 65)
# Names of the list of unquantized layers, in the formats.
_LEFT_OUT = ("ignore", "modules_to_not_convert", "ignored_layers")
_TENSOR_PARALLEL = "engine_args.tensor_parallel_size"


def dimension_findings(model: Model, engine: EngineConfig) -> Iterator[Finding]:
    degree = engine.tensor_parallel
    if alone := uneven_over(model, replace(engine, tensor_parallel=1)):
        remedy = "Quantize it again, with a group size that fits: antefix quantize"
        yield Finding("dimensions", True, "model", model.name, alone, remedy)
    elif uneven := uneven_over(model, engine):
        remedy = f"Use one of {', '.join(map(str, degrees(model, engine)))}"
        yield Finding("dimensions", True, _TENSOR_PARALLEL, degree, uneven, remedy)
    elif split := _experts_split(model, engine):
        message = f"{split}: vLLM uses a slower kernel for the experts"
        remedy = "Lower it, or set enable_expert_parallel: true"
        yield Finding("slow kernel", False, _TENSOR_PARALLEL, degree, message, remedy)


def degrees(model: Model, engine: EngineConfig) -> list[int]:
    """Return the first few tensor-parallel degrees that the model can be split into."""
    fit = [n for n in _DEGREES if uneven_over(model, replace(engine, tensor_parallel=n)) is None]
    return fit[:8]


def uneven_over(model: Model, engine: EngineConfig) -> str | None:
    """Return a description of what does not divide evenly; None if everything does."""
    shape, degree = model.shape, engine.tensor_parallel
    if shape.heads % degree:
        return f"does not divide the model's {shape.heads} attention heads"
    if not shape.is_mla and shape.kv_heads % degree and degree % shape.kv_heads:
        return (
            f"neither divides the model's {shape.kv_heads} key-value heads nor is a multiple of it"
        )
    for name, width in _widths(shape, engine):
        if width % degree:
            return f"does not divide the model's {name} of {width}"
    return next(_uneven_groups(model, degree), None)


def _widths(shape: ModelShape, engine: EngineConfig) -> Iterator[tuple[str, int]]:
    if shape.layers > shape.expert_layers:
        yield "intermediate size", shape.intermediate
    if shape.experts and not engine.args.get("enable_expert_parallel"):
        yield "experts' intermediate size", shape.expert_intermediate
    if shape.shared_expert_intermediate:
        yield "shared expert's intermediate size", shape.shared_expert_intermediate


def _uneven_groups(model: Model, degree: int) -> Iterator[str]:
    for stored in model.stored:
        for linear in _quantized(model.shape):
            if linear.expert:
                continue
            inputs = linear.inputs // degree if linear.shard == "inputs" else linear.inputs
            if stored.group > 0 and inputs % stored.group:
                yield _words(linear.name, linear.inputs, inputs, stored.group, degree)
            if stored.block and degree > 1:
                yield from _uneven_blocks(model.shape, linear, inputs, stored, degree)


def _uneven_blocks(
    shape: ModelShape, linear: Linear, inputs: int, stored: Stored, degree: int
) -> Iterator[str]:
    assert stored.block is not None
    tall, wide = stored.block
    is_key_or_value = linear.name in ("k_proj", "v_proj")
    outputs = linear.outputs // (min(degree, shape.kv_heads) if is_key_or_value else degree)
    if linear.shard == "inputs" and inputs % wide:
        yield _words(linear.name, linear.inputs, inputs, wide, degree)
    if linear.shard == "outputs" and outputs % tall:
        yield _words(linear.name, linear.outputs, outputs, tall, degree)


def _words(name: str, whole: int, part: int, group: int, degree: int) -> str:
    share = (
        f"leaves {part} of {name}'s {whole} to a GPU, which" if degree > 1 else f"{name}'s {whole}"
    )
    tail = "is not a multiple of" if degree > 1 else "inputs are not a multiple of"
    return f"{share} {tail} the quantization's groups of {group}"


def _experts_split(model: Model, engine: EngineConfig) -> str | None:
    width, degree = model.shape.expert_intermediate, engine.tensor_parallel
    if not model.shape.experts or engine.args.get("enable_expert_parallel"):
        return None
    for stored in model.stored:
        if stored.group > 0 and stored.weights.startswith("int") and width // degree % stored.group:
            return (
                f"{width // degree} of an expert's width of {width} on each GPU is not a "
                "multiple of "
                f"the quantization's groups of {stored.group}"
            )
    return None


def _quantized(shape: ModelShape) -> Iterator[Linear]:
    """Return the projections that are certainly quantized."""
    quantization: Mapping[str, Any] = shape.quantization or {}
    if _targets_some(quantization):
        return
    lists = (quantization.get(key) for key in _LEFT_OUT)
    left_out = [str(entry) for each in lists if isinstance(each, list) for entry in each]
    for linear in shape.linears():
        part = "mlp" if linear.name.startswith("mlp") else "self_attn"
        name = f"model.layers.0.{part}.{linear.name.rpartition('.')[2]}"
        if not any(_may_mean(entry, name) for entry in left_out):
            yield linear


def _may_mean(entry: str, name: str) -> bool:
    """Return whether an entry of the list of excluded layers may concern layers such as `name`."""
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], name) is not None
        except re.error:
            return True
    return entry in name or name.rpartition(".")[2] in entry


def _targets_some(quantization: Mapping[str, Any]) -> bool:
    """Return whether formats are assigned to layers by their names."""
    each = config_groups(quantization)
    named = any(group.get("targets") not in (None, ["Linear"]) for group in each)
    return named or len(each) > 1 or bool(quantization.get("dynamic"))
