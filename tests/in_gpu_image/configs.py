"""vLLM's configuration of every GPU pool that ships, as its CUDA build makes it on A100s.

    python -m tests.in_gpu_image.configs ROOT    in the environment of `pretended_driver`

Writes one JSON object a pool. A model is a folder with only its config: no weights, no tokenizer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tests.in_gpu_image.shipped_fleets import on_gpus, shipped_fleets


def main(root: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    _count_triton_as_usable()
    with tempfile.TemporaryDirectory() as models:
        for name, fleet in shipped_fleets(root).items():
            for pool, settings in fleet["pools"].items():
                if not on_gpus(settings):
                    continue
                told = {"pool": f"{name} {pool}", **_report_of_pool(settings, Path(models))}
                print(json.dumps(told), file=answers, flush=True)


def _count_triton_as_usable() -> None:
    """Triton asks CUDA for a device, which a pretended driver has not."""
    from triton.backends import backends

    backends["nvidia"].driver.is_active = staticmethod(lambda: True)


def _report_of_pool(pool: dict[str, Any], models: Path) -> dict[str, Any]:
    try:
        return _facts(pool, models)
    except Exception as error:
        traceback.print_exc()
        return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def _facts(pool: dict[str, Any], models: Path) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.attention.selector import get_attn_backend

    from deployments.engine.vllm.arguments.args import parse, with_folders

    engine_args = pool["engine_args"]
    draft = (engine_args.get("speculative_config") or {}).get("model")
    folders = {name: str(_folder(name, models)) for name in (pool["model"], draft) if name}
    args = parse(
        folders[pool["model"]], pool["served_model_name"], with_folders(engine_args, folders)
    )
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER
    )
    model, speculation = config.model_config, config.speculative_config
    heads = model.get_num_attention_heads(config.parallel_config)
    with set_current_vllm_config(config):
        backend = get_attn_backend(
            model.get_head_size(), model.dtype, config.cache_config.cache_dtype, num_heads=heads
        )
    return {
        "quantization": model.quantization,
        "dtype": str(model.dtype).removeprefix("torch."),
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "runner": "V2" if config.use_v2_model_runner else "V1",
        "attention": backend.get_name(),
        "kv_cache": config.cache_config.cache_dtype,
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "kernel": _kernel(config),
        "graphs": config.compilation_config.cudagraph_mode.name,
        "graph_sizes": len(config.compilation_config.cudagraph_capture_sizes or ()),
        "speculation": speculation.method if speculation else None,
    }


def _kernel(config: Any) -> str | None:
    """The kernel that vLLM chooses for a layer of 4-bit weights with zero points."""
    from vllm.model_executor.kernels.linear import MPLinearLayerConfig, choose_mp_linear_kernel

    quantized, model = config.quant_config, config.model_config
    if not getattr(quantized, "zero_point", False):
        return None
    size, degree = model.get_hidden_size(), config.parallel_config.tensor_parallel_size
    layer = MPLinearLayerConfig(
        full_weight_shape=(size, size),
        partition_weight_shape=(size // degree, size),
        weight_type=quantized.quant_type,
        act_type=model.dtype,
        group_size=quantized.group_size,
        zero_points=quantized.zero_point,
    )
    return str(choose_mp_linear_kernel(layer).__name__)


def _folder(model: str, models: Path) -> Path:
    from weights.model.known_models import known_config

    config = known_config(model)
    if config is None:
        raise LookupError(f"{model} is not in weights/models.yaml")
    folder = models / model.replace("/", "--")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]))
