"""A plan as text: rows of a table, the lines below it, and a JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weights.kernels.kernels import EXPERTS_WHILE_LOADING
from weights.model.memory import BF16, GIB, W8A16, weight_bytes
from weights.plan.drafting import DraftPlan
from weights.plan.plan import Plan
from weights.plan.sizing import Option

COLUMNS = (
    "weights",
    "GPUs each",
    "weights, GiB/GPU",
    "KV cache, GiB/GPU",
    "at full context",
    "max in flight",
    "TTFT p99, s",
    "TPOT, ms",
    "replicas",
    "GPUs",
)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield one row per precision, with the columns of `COLUMNS`."""
    for option in plan.options:
        speed = option.speed
        yield (
            option.engine.precision.name + (" *" if option is plan.chosen else ""),
            str(option.engine.tp),
            f"{option.budget.weights / GIB:.1f}",
            f"{option.budget.kv / GIB:.1f}",
            str(option.at_full_context),
            str(option.concurrency),
            f"{speed.ttft_p99_s:.2f}",
            f"{speed.tpot_s * 1e3:.1f}",
            str(option.replicas),
            str(option.gpus),
        )


def lines(plan: Plan) -> Iterator[str]:
    """Yield what the table does not contain."""
    chosen, target = plan.chosen, plan.target
    engine = chosen.engine
    where = f"{engine.tp} x {plan.gpu.name}" if engine.tp > 1 else plan.gpu.name
    yield (
        f"* {engine.precision.name} on {where}: {chosen.replicas} serving, {plan.warm} warm"
        f" ({chosen.in_flight} requests in flight, mean {target.prompt} + {target.output} tokens)"
    )
    if target.long_prompt is not None:
        yield f"p99 prompt length: {target.long_prompt} tokens"
    for refused in plan.refused:
        yield f"not {refused.precision.name}: {refused.reason}"
    yield (
        f"KV cache: {chosen.kv_tokens:,} tokens per replica,"
        f" {chosen.kv_token_bytes / 1024:.0f} KiB per token per GPU"
    )
    if target.host_bytes:
        yield (
            f"host tier: {chosen.host_tokens(target.host_bytes):,} tokens per replica in"
            f" {target.host_bytes / GIB:.4g} GiB of the host's memory"
        )
    if plan.overflow:
        light = plan.overflow.option.engine
        yield (
            f"overflow: {_counted(plan.overflow.replicas, 'replica')} with {light.precision.name}"
            f" weights, {_counted(light.tp, 'GPU')} each"
        )
    yield f"total GPUs: {plan.gpus}"
    yield by_load(plan)
    if plan.shape.experts and plan.shape.quantization is None:
        size = weight_bytes(plan.shape, BF16, engine.tp, experts=W8A16)
        yield (
            f"INT8 of the experts while they load ({EXPERTS_WHILE_LOADING[0]}):"
            f" {size / GIB:.1f} GiB of weights on each of {_counted(engine.tp, 'GPU')}"
        )
    yield "speculation would not pay off" if plan.draft is None else _drafting(plan.draft)
    if plan.cost_output is not None and plan.cost_all is not None:
        yield (
            f"cost: {plan.cost_output:.2f} per million output tokens, {plan.cost_all:.2f} with"
            f" the prompts' counted, at {target.price_per_gpu_hour:g} per GPU-hour"
        )


def _drafting(plan: DraftPlan) -> str:
    return (
        f"drafting {plan.drafted} token(s) per step by {plan.draft.method} pays off up to a batch"
        f" of {plan.up_to} sequences: one decodes {plan.speedup:.1f} times as fast, if"
        f" {plan.accepted:.0%} of the drafts are right; measure it: antefix tune-speculation"
    )


def by_load(plan: Plan) -> str:
    if plan.crossover is None:
        return "by load: w4a16 decodes fastest at any batch here"
    fast = "fp8" if "fp8" in plan.gpu.flops else "w8a8"
    return (
        f"by load: w4a16 decodes fastest below a batch of {plan.crossover} sequences, {fast} from"
        " there"
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """Return bytes, seconds and tokens; one object per option, in the table's order."""
    overflow = plan.overflow
    return {
        "gpu": plan.gpu.name,
        "architecture": plan.shape.architecture,
        "parameters": plan.shape.parameters,
        "active_parameters": plan.shape.active_parameters,
        "options": [_option(option, plan) for option in plan.options],
        "refused": {refused.precision.name: refused.reason for refused in plan.refused},
        "crossover_batch": plan.crossover,
        "long_prompt": plan.target.long_prompt,
        "draft": plan.draft and _draft(plan.draft),
        "warm_replicas": plan.warm,
        "overflow": overflow
        and {
            "weights": overflow.option.engine.precision.name,
            "tensor_parallel": overflow.option.engine.tp,
            "replicas": overflow.replicas,
        },
        "gpus": plan.gpus,
        "prefill_rate": plan.prefill_rate,
        "price_per_gpu_hour": plan.target.price_per_gpu_hour,
        "cost_per_million_output_tokens": plan.cost_output,
        "cost_per_million_tokens": plan.cost_all,
    }


def _draft(plan: DraftPlan) -> dict[str, Any]:
    return {
        "method": plan.draft.method,
        "model": plan.draft.model,
        "tokens": plan.drafted,
        "up_to_sequences": plan.up_to,
        "speedup_of_one": plan.speedup,
        "speedup_at_load": plan.at_load,
        "assumed_accepted": plan.accepted,
        "weight_bytes_per_gpu": plan.draft.weight_bytes,
        "kv_bytes_per_token_and_gpu": plan.draft.kv_token_bytes,
    }


def _option(option: Option, plan: Plan) -> dict[str, Any]:
    return {
        "weights": option.engine.precision.name,
        "chosen": option is plan.chosen,
        "tensor_parallel": option.engine.tp,
        "usable_bytes_per_gpu": option.budget.usable,
        "weight_bytes_per_gpu": option.budget.weights,
        "activation_bytes_per_gpu": option.budget.activations,
        "runtime_bytes_per_gpu": option.budget.runtime,
        "kv_bytes_per_gpu": option.budget.kv,
        "kv_bytes_per_token_and_gpu": option.kv_token_bytes,
        "kv_tokens_per_replica": option.kv_tokens,
        "host_tokens_per_replica": option.host_tokens(plan.target.host_bytes),
        "at_full_context": option.at_full_context,
        "concurrency_per_replica": option.concurrency,
        "in_flight": option.in_flight,
        "replicas": option.replicas,
        "gpus": option.gpus,
        "ttft_s": option.speed.ttft_s,
        "ttft_p99_s": option.speed.ttft_p99_s,
        "tpot_s": option.speed.tpot_s,
        "step_s": option.speed.step_s,
        "requests_s_per_replica": option.speed.requests_s,
    }
