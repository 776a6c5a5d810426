"""A plan as a fleet file for `antefix up`: the pool, its warm replicas and its overflow."""

from __future__ import annotations

import re
from math import ceil
from typing import Any

import yaml

from weights.model.memory import Precision
from weights.plan.plan import Plan
from weights.plan.sizing import STEP_TOKENS, Option
from weights.plan.watched import token_prices, watched_objectives, watched_throughput


def fleet_yaml(plan: Plan, model: str, speculates: bool = False) -> str:
    """Return the file. Comments at the top name the weights to quantize first.

    `speculates`: with the plan's draft, if that pays.
    """
    name = _label(model)
    pools = {name: _pool(plan, plan.chosen, model, plan.chosen.replicas)}
    engine, target = plan.chosen.engine, plan.target
    load = target.load(ceil(plan.chosen.in_flight / plan.chosen.replicas), plan.chosen.replicas)
    pools[name]["slo"] = {
        "interactive": {
            "ttft_s": target.ttft_s,
            **({"tpot_s": target.tpot_s} if target.tpot_s else {}),
            **watched_objectives(engine, load, target.ttft_s, target.tpot_s),
        },
        "throughput": watched_throughput(engine, load),
    }
    if target.price_per_gpu_hour is not None:
        pools[name]["price"] = token_prices(engine, load, target.price_per_gpu_hour)
    pools[name]["warm_replicas"] = plan.warm
    if plan.target.host_bytes:
        pools[name]["kv_tiers"] = {"host_bytes": plan.target.host_bytes}
    if speculates and plan.draft is not None:
        tp, most = plan.chosen.engine.tp, plan.chosen.concurrency
        config = plan.draft.speculative_config(tp, most)
        pools[name]["engine_args"]["speculative_config"] = config
        pools[name]["speculation"] = {"when_slower": "stop"}
    pools[name]["prefill_rate"] = round(plan.prefill_rate)
    used = [plan.chosen.engine]
    if plan.overflow:
        light = f"{name}-overflow"
        pools[name]["overflow"] = {"to": light}
        pools[light] = _pool(plan, plan.overflow.option, model, plan.overflow.replicas)
        pools[light]["served_model_name"] = light
        used.append(plan.overflow.option.engine)
    made = [
        f"# first: antefix quantize {model} --scheme {engine.precision.scheme}"
        + (f" --tensor-parallel {engine.tp}" if engine.precision.group_size else "")
        + f" --output-dir {_weights(plan, model, engine.precision)}"
        for engine in used
        if engine.precision.scheme and plan.shape.quantization is None
    ]
    body = yaml.safe_dump({"name": name, "pools": pools}, sort_keys=False, width=100)
    return "\n".join([f"# Planned by antefix plan for {model} on {plan.gpu.name}.", *made, body])


def _pool(plan: Plan, option: Option, model: str, replicas: int) -> dict[str, Any]:
    engine = option.engine
    return {
        "model": _weights(plan, model, engine.precision),
        "served_model_name": _label(model),
        "replicas": replicas,
        "max_ongoing_requests": option.concurrency,
        "resources": {"accelerator_type": plan.gpu.ray_type},
        "engine_args": {
            "tensor_parallel_size": engine.tp,
            "max_model_len": plan.target.context,
            "max_num_seqs": option.concurrency,
            # at least the sequences of a step, because vLLM refuses less
            "max_num_batched_tokens": STEP_TOKENS,
            "gpu_memory_utilization": plan.target.utilization,
            "kv_cache_dtype": plan.target.cache.name,
            "enable_prefix_caching": True,
            "enable_chunked_prefill": True,
        },
    }


def _label(model: str) -> str:
    """Return the last part of an id or a path, as a DNS label."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:50].strip("-") or "model"


def _weights(plan: Plan, model: str, precision: Precision) -> str:
    """Return the model itself, or the folder that `antefix quantize` creates from it."""
    if precision.scheme is None or plan.shape.quantization is not None:
        return model
    folder = model.rstrip("/") if model.startswith(("/", ".", "~")) else f"./{_label(model)}"
    return f"{folder}-{precision.scheme}"
