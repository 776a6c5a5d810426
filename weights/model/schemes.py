"""Quantization schemes, and the group sizes that fit a model.

Each writes compressed-tensors, which vLLM serves directly. Weight-only schemes make a decode step
cheaper, because it waits for memory. W8A8 schemes make large batches cheaper too, because those
wait for arithmetic.

AWQ: Lin et al. 2023 (arXiv 2306.00978); GPTQ: Frantar et al. 2022 (2210.17323); SmoothQuant: Xiao
et al. 2022 (2211.10438).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from common.errors import Problem

GROUP_SIZES = (128, 64, 32, 16)

# The output head costs too much quality when quantized, and a router's few weights choose the
# experts. Both stay as they are, as do the vision and audio parts.
NOT_QUANTIZED = (
    "lm_head",
    r"re:.*mlp\.gate$",
    r"re:.*block_sparse_moe\.gate$",
    r"re:.*shared_expert_gate$",
    r"re:.*router.*",
    r"re:.*(visual|vision_tower|vision_model|multi_modal_projector|audio_tower).*",
)
# Tensor parallelism splits these along their inputs, and all others along their outputs.
ROW_PARALLEL = ("o_proj", "down_proj", "out_proj", "dense", "wo", "w2")


@dataclass(frozen=True)
class Scheme:
    name: str
    weight_bits: int
    weight_type: Literal["int", "float"]
    activation_bits: int
    """16: not quantized; 8: quantized per token, at run time."""
    method: Literal["round", "awq", "gptq", "smoothquant"]
    symmetric: bool
    grouped: bool
    """Whether a weight's scale is that of a group of inputs; otherwise of a whole output
    channel."""
    served_by: str
    meant_for: str

    @property
    def needs_calibration(self) -> bool:
        return self.method != "round"

    def arguments(self, group_size: int | None) -> dict[str, Any]:
        """Return arguments of compressed-tensors' QuantizationScheme, for all linear layers."""
        weights: dict[str, Any] = {
            "num_bits": self.weight_bits,
            "type": self.weight_type,
            "symmetric": self.symmetric,
            "strategy": "group" if self.grouped else "channel",
            "group_size": group_size,
        }
        activations = {
            "num_bits": 8,
            "type": self.weight_type,
            "symmetric": True,
            "strategy": "token",
            "dynamic": True,
        }
        return {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": activations if self.activation_bits == 8 else None,
        }


_INT4_GPUS = "NVIDIA GPUs from Turing (T4) on, x86 CPUs"
_INT8_GPUS = "NVIDIA GPUs from Turing to Hopper, x86 CPUs"

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            *("awq", 4, "int", 16, "awq", False, True, _INT4_GPUS),
            "the best 4-bit scheme for chat: decoding in small batches",
        ),
        Scheme(
            *("gptq", 4, "int", 16, "gptq", True, True, _INT4_GPUS),
            "4 bits, quantizes faster than awq",
        ),
        Scheme(
            *("rtn", 4, "int", 16, "round", True, True, _INT4_GPUS),
            "4 bits in seconds and without calibration; loses the most quality",
        ),
        Scheme(
            *("w8a16", 8, "int", 16, "round", True, False, "NVIDIA GPUs from Turing (T4) on"),
            "half the bytes, almost no loss",
        ),
        Scheme(
            *("w8a8-smoothquant", 8, "int", 8, "smoothquant", True, False, _INT8_GPUS),
            "large batches and long prompts on GPUs without FP8, such as A100",
        ),
        Scheme(
            *("w8a8", 8, "int", 8, "round", True, False, _INT8_GPUS),
            "the same without calibration; loses more",
        ),
        Scheme(
            *("fp8", 8, "float", 8, "round", True, False, "NVIDIA GPUs from Ada and Hopper on"),
            "large batches and long prompts on H100, H200, L4; no calibration",
        ),
    )
}


def scheme_called(name: str) -> Scheme:
    if name not in SCHEMES:
        raise Problem(f"unknown scheme {name!r}", f"use one of: {', '.join(SCHEMES)}")
    return SCHEMES[name]


def fitting_group(inputs: Mapping[str, int], wanted: int | None, tensor_parallel: int) -> int:
    """Return the group size for layers of these numbers of inputs: `wanted`, or the largest that
    fits.

    A group may not cross the border between two GPUs. Raises Problem that names the first
    unsuitable layer.
    """
    on_one_gpu = {
        layer: _inputs_of_one_gpu(layer, size, tensor_parallel) for layer, size in inputs.items()
    }
    fitting = [g for g in GROUP_SIZES if all(size % g == 0 for size in on_one_gpu.values())]
    if wanted is None:
        if fitting:
            return fitting[0]
        smallest = GROUP_SIZES[-1]
        layer = next(name for name, size in on_one_gpu.items() if size % smallest)
        raise Problem(
            f"no group size fits: not even {smallest} divides the "
            f"{on_one_gpu[layer]} inputs of {layer}{_share(tensor_parallel)}",
            "use a scheme without groups: "
            + ", ".join(name for name, scheme in SCHEMES.items() if not scheme.grouped),
        )
    for layer, size in on_one_gpu.items():
        if wanted < 1 or size % wanted:
            raise Problem(
                f"a group size of {wanted} does not divide the {size} inputs of "
                f"{layer}{_share(tensor_parallel)}",
                f"use {', '.join(map(str, fitting))}" if fitting else "use a scheme without groups",
            )
    return wanted


def _inputs_of_one_gpu(layer: str, inputs: int, tensor_parallel: int) -> int:
    if layer.rpartition(".")[2] not in ROW_PARALLEL:
        return inputs
    if inputs % tensor_parallel:
        raise Problem(
            f"a tensor parallelism of {tensor_parallel} does not divide the {inputs} inputs of "
            f"{layer}",
            "use a degree that does",
        )
    return inputs // tensor_parallel


def _share(tensor_parallel: int) -> str:
    return f" on each of {tensor_parallel} GPUs" if tensor_parallel > 1 else ""
