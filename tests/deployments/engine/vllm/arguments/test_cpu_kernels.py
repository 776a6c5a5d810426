"""Weights of 4 bits on a CPU for which vLLM has no kernel: refused before the engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from common.errors import Problem
from deployments.engine.vllm.arguments import cpu_kernels
from deployments.engine.vllm.arguments.args import parse
from deployments.engine.vllm.arguments.cpu_kernels import refuse_missing_kernels
from deployments.models.model import EMBEDDED
from deployments.models.model_config import model_config

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}


def compressed(bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 64}
    packed = {"weights": weights, "targets": ["Linear"], "format": "pack-quantized"}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": packed},
    }


def args_of(folder: Path, quantization: dict[str, Any] | None) -> AsyncEngineArgs:
    config = {**(model_config(EMBEDDED) or {}), "dtype": "bfloat16"}
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    return AsyncEngineArgs.from_cli_args(parse(str(folder), "model", {}))


@pytest.mark.parametrize("quantization", [AWQ, GPTQ, compressed(4)])
def test_weights_of_4_bits_without_a_kernel_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: dict[str, Any]
) -> None:
    args = args_of(tmp_path, quantization)
    monkeypatch.setattr(cpu_kernels, "INT4_KERNEL", "none")
    with pytest.raises(Problem, match=r"has 4-bit weights.*AVX-512") as refused:
        refuse_missing_kernels(args)
    assert str(tmp_path) in refused.value.message
    assert "unquantized" in refused.value.remedy


@pytest.mark.parametrize("quantization", [None, compressed(8)])
def test_other_weights_need_no_such_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(cpu_kernels, "INT4_KERNEL", "none")
    refuse_missing_kernels(args_of(tmp_path, quantization))
