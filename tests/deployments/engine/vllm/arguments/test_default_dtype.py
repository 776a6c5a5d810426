"""Which dtype an engine is started with where its arguments name none."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch.cpu
from vllm.engine.arg_utils import AsyncEngineArgs

from deployments.engine.vllm.arguments.args import parse
from deployments.engine.vllm.arguments.default_dtype import choose_dtype
from deployments.models.model import EMBEDDED
from deployments.models.model_config import model_config

NATIVE = {"avx512_bf16": True}
INT8 = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {}}


def args_of(folder: Path, config: dict[str, Any], **engine_args: Any) -> AsyncEngineArgs:
    (folder / "config.json").write_text(json.dumps(config))
    return AsyncEngineArgs.from_cli_args(parse(str(folder), "model", engine_args))


@pytest.fixture
def config() -> dict[str, Any]:
    return dict(model_config(EMBEDDED) or {})


def set_cpu_capabilities(monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool]) -> None:
    """After `args_of`, with which vLLM imports the kernels of this CPU. Those of two CPUs abort the
    process."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)


@pytest.mark.parametrize("given", [{}, {"dtype": None}, {"dtype": "auto"}])
@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("capabilities", "dtype"), [(NATIVE, "bfloat16"), ({}, "float32")])
def test_an_engine_on_cpus_uses_the_faster_dtype_and_logs_it(
    tmp_path: Path,
    config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    stored: str,
    capabilities: dict[str, bool],
    dtype: str,
) -> None:
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    args = args_of(tmp_path, config | {"dtype": stored}, **given)
    set_cpu_capabilities(monkeypatch, capabilities)
    with caplog.at_level(logging.INFO, "ray.serve"):
        choose_dtype(args, on_cpu=True)
    assert args.dtype == dtype
    assert f"the engine computes in {dtype}: this CPU has" in caplog.text
    assert str(args.create_model_config().dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("dtype", ["float32", "float", "bfloat16", "half"])
def test_a_dtype_that_is_given_is_kept(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    args = args_of(tmp_path, config, dtype=dtype)
    set_cpu_capabilities(monkeypatch, {} if dtype == "bfloat16" else NATIVE)
    choose_dtype(args, on_cpu=True)
    assert args.dtype == dtype


def test_a_quantized_model_keeps_the_dtype_of_its_kernels(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = args_of(tmp_path, config | {"quantization_config": INT8})
    set_cpu_capabilities(monkeypatch, {})
    choose_dtype(args, on_cpu=True)
    assert args.dtype == "auto"


def test_an_engine_on_gpus_keeps_the_dtype_of_its_model(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = args_of(tmp_path, config)
    set_cpu_capabilities(monkeypatch, {})
    choose_dtype(args, on_cpu=False)
    assert args.dtype == "auto"
