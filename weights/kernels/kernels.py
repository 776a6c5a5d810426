"""Which quantized weights vLLM has a kernel for, on which GPU, and how good a kernel it is.

From the sources of vLLM 0.32, below vllm/; tests/test_kernel_facts.py asks that code again:
- model_executor/layers/quantization/__init__.py: the names there are; auto_awq.py, auto_gptq.py,
  fp8.py, ...: `get_min_capability`, `get_supported_act_dtypes`, `override_quantization_method`
- .../quantization/utils/marlin_utils.py: Marlin's group sizes and least capability
- .../quantization/compressed_tensors/schemes/: the least capability of each scheme; below that of
  FP8 arithmetic the same weights are served by Marlin, which computes in 16 bit
- config/quantization.py, .../quantization/online/: what can be quantized while it loads. It has
  INT8 for experts only; FP8 by channel refuses Marlin, the only kernel before capability 8.9
- INT8 arithmetic ends before Blackwell: vllm-project/vllm#25935 ("Use FP8 quantization instead, or
  run on older arch (SM < 100)")

Only NVIDIA's GPUs and vLLM's CPU build are described. Unknown formats get no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Capability = tuple[int, int]

# Checkpoints' quant_method -> the minimum capability, and the dtypes in which vLLM computes.
_HALF = ("float16", "bfloat16")
METHODS: Mapping[str, tuple[Capability, tuple[str, ...]]] = {
    "awq": ((7, 5), _HALF),
    # the method allows 6.0, but needs Marlin
    "gptq": ((7, 5), _HALF),
    "compressed-tensors": ((7, 0), ("float32", *_HALF)),
    "fp8": ((7, 5), _HALF),
    "fbgemm_fp8": ((8, 0), _HALF),
    "fp_quant": ((10, 0), ("bfloat16",)),
    "modelopt": ((8, 0), _HALF),
    "mxfp4": ((8, 0), ("bfloat16",)),
    "torchao": ((7, 5), ("float32", *_HALF)),
    "int8_per_channel_weight_only": ((7, 5), _HALF),
    "experts_int8": ((8, 0), _HALF),
}
DEPRECATED = ("fbgemm_fp8", "fp_quant")
# Methods of older vLLMs that this one does not have.
GONE = ("bitsandbytes", "gguf", "aqlm", "marlin", "hqq", "squeezellm", "bitblas")
# Other names in a fleet file that fit a checkpoint's quant_method.
ALSO_CALLED: Mapping[str, tuple[str, ...]] = {
    "awq": ("awq_marlin", "auto_awq", "moe_wna16"),
    "gptq": ("gptq_marlin", "auto_gptq", "moe_wna16"),
}
# Names that quantize 16-bit weights while they load.
WHILE_LOADING = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block")
# Names that do so only with the weights of experts, to INT8; inputs stay in 16 bit.
EXPERTS_WHILE_LOADING = ("int8_per_channel_weight_only", "experts_int8")
NEED_A_CHECKPOINT = (
    *("awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq"),
    *("compressed-tensors", "fp8"),
)

MARLIN_GROUPS = (-1, 32, 64, 128)
LEAST_FOR_INTEGERS: Capability = (7, 5)
LEAST_FOR_BFLOAT16: Capability = (8, 0)
LEAST_FOR_FP8: Capability = (8, 9)
FIRST_WITHOUT_INT8: Capability = (10, 0)
LEAST_FOR_FP4: Capability = (10, 0)
# Kernels that serve any shape, several times slower than Marlin and Machete.
SLOW_BACKENDS = ("conch", "emulation", "exllama", "torch", "triton")


@dataclass(frozen=True)
class Stored:
    """The storage of a checkpoint's linear layers.

    `activations`: the type to which inputs are rounded before multiplication; empty: none. `group`:
    inputs that share a scale, -1 for all of an output; 0 without groups. `block`: outputs x inputs
    that share a scale.
    """

    method: str
    weights: str = ""
    activations: str = ""
    group: int = 0
    block: tuple[int, int] | None = None
    zero_points: bool = False

    @property
    def words(self) -> str:
        """The usual name: W4A16, W8A8 INT8, FP8."""
        if self.weights == "fp8":
            return "FP8"
        bits = {"int4": "W4", "int8": "W8", "fp4": "FP4 W4"}.get(self.weights, "")
        if not bits:
            return self.method
        return f"{bits}A8 {self.activations.upper()}" if self.activations else f"{bits}A16"


@dataclass(frozen=True)
class KernelVerdict:
    """A verdict about a kernel: `refuse` if there is none, `warn` if it is slow."""

    refuses: bool
    message: str
    remedy: str


def stored_in(quantization: Mapping[str, Any] | None) -> tuple[Stored, ...]:
    """Return the formats in a config.json's `quantization_config`; none for weights of 16 or 32
    bit."""
    if not quantization:
        return ()
    method = str(quantization.get("quant_method", "")).lower()
    if method in ("awq", "gptq"):
        bits = quantization.get("bits", quantization.get("w_bit"))
        group = quantization.get("group_size", quantization.get("q_group_size", 0))
        zeros = bool(quantization.get("zero_point", False)) and method == "awq"
        return (Stored(method, f"int{bits}", group=_whole(group), zero_points=zeros),)
    if method == "compressed-tensors":
        return tuple(_compressed(group) for group in config_groups(quantization))
    if method == "fp8":
        return (Stored(method, "fp8", "fp8", block=_block(quantization.get("weight_block_size"))),)
    return (Stored(method),) if method else ()


def config_groups(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return compressed-tensors' formats, each with its layers."""
    groups = _mapping(quantization.get("config_groups"))
    return [group for group in groups.values() if isinstance(group, Mapping)]


def _compressed(group: Mapping[str, Any]) -> Stored:
    weights, inputs = _mapping(group.get("weights")), _mapping(group.get("input_activations"))
    grouped = weights.get("strategy") in ("group", "tensor_group")
    return Stored(
        "compressed-tensors",
        _type_of(weights),
        _type_of(inputs),
        _whole(weights.get("group_size")) if grouped else -1,
        _block(weights.get("block_structure")),
        zero_points=weights.get("symmetric") is False,
    )


def _type_of(numbers: Mapping[str, Any]) -> str:
    """Return compressed-tensors' `type` and `num_bits` in one word; empty: not quantized."""
    bits = numbers.get("num_bits")
    if not isinstance(bits, int):
        return ""
    return f"fp{bits}" if numbers.get("type") == "float" else f"int{bits}"


def _block(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(_whole(n) > 0 for n in value):
        return value[0], value[1]
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    """Return a group size: -1 or above 0; 0 for any other value."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and (value > 0 or value == -1) else 0


def fits(named: str, method: str) -> bool:
    """Return whether vLLM accepts `quantization: named` for a checkpoint of that quant_method.

    It is known only for some pairs; all others are assumed to fit.
    """
    if method not in ("awq", "gptq", "compressed-tensors", "fp8") or named == method:
        return True
    if named not in (*NEED_A_CHECKPOINT, *WHILE_LOADING, *EXPERTS_WHILE_LOADING, "moe_wna16"):
        return True
    return named in ALSO_CALLED.get(method, ())


def verdicts(stored: Stored, capability: Capability | None) -> Iterator[KernelVerdict]:
    """Yield verdicts about the kernels for these weights. `capability` None: vLLM's CPU build."""
    if stored.method in GONE:
        yield KernelVerdict(
            True,
            f"this vLLM cannot load checkpoints quantized with {stored.method}",
            "Serve the original weights, or quantize them: antefix quantize",
        )
    elif capability is None:
        yield from _on_cpus(stored)
    else:
        yield from _on_gpus(stored, capability)


def verdicts_while_loading(named: str, capability: Capability | None) -> Iterator[KernelVerdict]:
    """Yield verdicts about the kernels for 16-bit weights that vLLM quantizes by this name."""
    if named in EXPERTS_WHILE_LOADING:
        yield from verdicts(Stored(named), capability)
    elif named == "fp8_per_channel" and _is_between(LEAST_FOR_INTEGERS, capability, LEAST_FOR_FP8):
        yield KernelVerdict(
            True,
            "vLLM has no kernel for FP8 by channel on this GPU: they require capability 8.9",
            "Write fp8_per_tensor, or quantize first: antefix quantize --scheme w8a8-smoothquant",
        )
    elif named in WHILE_LOADING:
        yield from verdicts(Stored("fp8", "fp8", "fp8"), capability)


def _is_between(first: Capability, capability: Capability | None, end: Capability) -> bool:
    return capability is not None and first <= capability < end


def _on_cpus(stored: Stored) -> Iterator[KernelVerdict]:
    if stored.weights == "int8" and not stored.activations:
        yield KernelVerdict(
            True,
            "vLLM's CPU build has no kernel for 8-bit weights with 16-bit inputs (W8A16)",
            "Use W4A16 (antefix quantize --scheme awq) or W8A8 (w8a8-smoothquant)",
        )


def _on_gpus(stored: Stored, capability: Capability) -> Iterator[KernelVerdict]:
    has = f"it has capability {capability[0]}.{capability[1]}"
    least = _least(stored)
    if capability < least:
        yield KernelVerdict(
            True,
            f"vLLM has no kernel for {stored.words} on this GPU: {has}, and {least[0]}.{least[1]} "
            "is needed",
            "Serve unquantized weights in float16, or use a newer GPU",
        )
    elif stored.activations == "int8" and capability >= FIRST_WITHOUT_INT8:
        yield KernelVerdict(
            True,
            f"vLLM has no kernel for W8A8 INT8 on this GPU: {has}, and they end before 10.0",
            "Use FP8: antefix quantize --scheme fp8",
        )
    elif stored.weights == "fp8" and capability < LEAST_FOR_FP8:
        yield KernelVerdict(
            False,
            f"this GPU has no FP8 arithmetic ({has}, but needs 8.9): the weights take half the "
            "memory, and the GPU computes in 16 bit",
            "For speed in large batches use W8A8 INT8: antefix quantize --scheme w8a8-smoothquant",
        )
    elif stored.weights == "fp4" and stored.activations == "fp4" and capability < LEAST_FOR_FP4:
        yield KernelVerdict(
            False,
            f"this GPU has no FP4 arithmetic ({has}, but needs 10.0): the weights take a quarter "
            "of the memory, and the GPU computes in 16 bit",
            "For speed in large batches use FP8 or W8A8 INT8",
        )
    elif is_weight_only(stored) and stored.group not in (0, *MARLIN_GROUPS):
        yield _without_marlin(stored)
    elif stored.method == "awq" and not stored.zero_points:
        yield KernelVerdict(
            False,
            "AWQ without zero points has no Marlin kernel: vLLM's own AWQ kernel is several times "
            "slower",
            "Quantize it with zero points: antefix quantize --scheme awq",
        )


def _least(stored: Stored) -> Capability:
    least = METHODS.get(stored.method, ((0, 0), ()))[0]
    # because compressed-tensors allows more than any of its schemes does
    return max(least, LEAST_FOR_INTEGERS) if stored.weights else least


def is_weight_only(stored: Stored) -> bool:
    return stored.weights in ("int4", "int8") and not stored.activations


def _without_marlin(stored: Stored) -> KernelVerdict:
    message = f"Marlin, vLLM's fast kernel, supports groups of 32, 64 or 128, not of {stored.group}"
    remedy = "Quantize it again: antefix quantize --group-size 128"
    if stored.method == "gptq":
        return KernelVerdict(True, f"{message}, and GPTQ has no other kernel", remedy)
    return KernelVerdict(False, f"{message}; its replacement is several times slower", remedy)
