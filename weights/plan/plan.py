"""A plan for a model, a GPU, a load and an SLO: pure arithmetic on frozen data.

For every precision that the GPU computes, it takes the tensor parallelism with the fewest GPUs; of
the precisions, again the one with the fewest, and of equal ones the one with the most bits. If
nothing fits or meets the SLO, a `Problem` reports the gap and a remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt

from common.errors import Problem
from weights.kernels.kernels import LEAST_FOR_FP8
from weights.model.gpus import GPUS, Gpu
from weights.model.memory import GIB, PRECISIONS, W4A16, Precision, fitted, kv_bytes_of
from weights.model.model_shape import ModelShape
from weights.plan.drafting import (
    DraftEngine,
    DraftPlan,
    Method,
    draft_of,
    planned_draft,
)
from weights.plan.roofline import (
    RooflineEngine,
    crossover_batch,
    prefill_rate,
    speed_of,
)
from weights.plan.sizing import Option, SizingTarget, option_for, sized, stored_precision


@dataclass(frozen=True)
class RefusedPrecision:
    precision: Precision
    reason: str


@dataclass(frozen=True)
class OverflowReplicas:
    """Replicas of the same model in 4 bit, for load beyond the warm pool."""

    option: Option
    replicas: int


@dataclass(frozen=True)
class Plan:
    """A plan. `crossover`: sequences per step from which 8 bit beats 4 bit; None if it never does.

    `draft`: how to speculate; None: it would not pay, or not fit. Costs are per million tokens, in
    the price's currency.
    """

    target: SizingTarget
    gpu: Gpu
    shape: ModelShape
    options: tuple[Option, ...]
    refused: tuple[RefusedPrecision, ...]
    chosen: Option
    crossover: int | None
    draft: DraftPlan | None
    warm: int
    overflow: OverflowReplicas | None
    cost_output: float | None
    cost_all: float | None

    @property
    def gpus(self) -> int:
        """Return the GPUs, including warm and overflow replicas."""
        main = self.chosen.engine.tp * (self.chosen.replicas + self.warm)
        return main + (
            self.overflow.option.engine.tp * self.overflow.replicas if self.overflow else 0
        )

    @property
    def prefill_rate(self) -> float:
        """Return prompt tokens per second of one replica."""
        return prefill_rate(self.chosen.engine, self.target.prompt)


@dataclass(frozen=True)
class Drafter:
    """A possible draft; `shape` of a draft model, or of a head if it is known.

    `accepted`: the share of drafts that is right, 0 to 1; None: what is assumed for the method.
    """

    method: Method = "ngram_gpu"
    model: str | None = None
    shape: ModelShape | None = None
    accepted: float | None = None


def plan_for(
    shape: ModelShape, gpu: Gpu, target: SizingTarget, drafter: Drafter | None = None
) -> Plan:
    """Return the plan. Raises Problem if the target cannot be met. Without a `drafter`, n-grams may
    draft."""
    _check(shape, gpu, target)
    tried = {
        precision: sized(shape, gpu, precision, target) if precision.compute in gpu.flops else None
        for precision in _precisions(shape)
    }
    options, refused = [], []
    for precision, engines in tried.items():
        able = [option for option in engines or () if option.fits and option.concurrency]
        if able:
            options.append(min(able, key=lambda option: (option.gpus, option.engine.tp)))
        else:
            refused.append(RefusedPrecision(precision, _reason(engines, gpu, precision)))
    if not options:
        raise _impossible([o for engines in tried.values() for o in engines or ()], refused, target)
    # options are in the order of PRECISIONS, so the one with the most bits is first among equals
    chosen = min(options, key=lambda option: option.gpus)
    cost = _cost_per_request(chosen, target)
    return Plan(
        target=target,
        gpu=gpu,
        shape=shape,
        options=tuple(options),
        refused=tuple(refused),
        chosen=chosen,
        crossover=_crossover(shape, gpu, chosen.engine, target),
        draft=_draft(chosen, target, drafter or Drafter()),
        warm=_warm(chosen),
        overflow=_overflow(options, chosen, target),
        cost_output=cost and cost / target.output * 1e6,
        cost_all=cost and cost / (target.prompt + target.output) * 1e6,
    )


def _check(shape: ModelShape, gpu: Gpu, target: SizingTarget) -> None:
    if shape.max_context is not None and target.context > shape.max_context:
        raise Problem(
            f"a context of {target.context} tokens exceeds the model's {shape.max_context}",
            f"request at most {shape.max_context}, or use a model with a longer context",
        )
    if target.prompt + target.output > target.context:
        raise Problem(
            f"a prompt of {target.prompt} and an output of {target.output} tokens exceed the"
            f" context of {target.context}",
            "request a longer context, or shorter ones",
        )
    if target.long_prompt is not None and not (
        target.prompt <= target.long_prompt < target.context
    ):
        raise Problem(
            f"a long prompt of {target.long_prompt} tokens is not between the mean one of"
            f" {target.prompt} and the context of {target.context}",
            "pass the length that one prompt in a hundred exceeds",
        )
    if target.cache.name == "fp8" and gpu.capability < LEAST_FOR_FP8:
        raise Problem(
            f"an FP8 KV cache is slow on {gpu.name}, which has no FP8 arithmetic",
            "use --kv-cache-dtype int8_per_token_head or auto, or plan for a newer GPU",
        )
    if target.cache.has_scales and shape.is_mla:
        raise Problem(
            f"vLLM's kernels for latent attention cannot read a KV cache of {target.cache.name}",
            "leave --kv-cache-dtype at auto",
        )


def _precisions(shape: ModelShape) -> tuple[Precision, ...]:
    return PRECISIONS if shape.quantization is None else (stored_precision(shape),)


def _reason(engines: list[Option] | None, gpu: Gpu, precision: Precision) -> str:
    if engines is None:
        return f"{gpu.name} does not compute {precision.compute}"
    if any(option.fits for option in engines):
        return "misses the SLO with one request"
    return "does not fit" if engines else "its groups do not divide evenly"


def _impossible(
    tried: list[Option], refused: list[RefusedPrecision], target: SizingTarget
) -> Problem:
    if not tried:
        return Problem(
            f"the model is stored as {refused[0].precision.name}: {refused[0].reason}",
            "plan for the model it was made from, or for another GPU",
        )
    if fitting := [option for option in tried if option.fits]:
        return _too_slow(fitting, target)

    def missing(option: Option) -> int:
        engine = option.engine
        need = kv_bytes_of(engine.shape, target.context, target.cache, engine.tp)
        return need - option.budget.kv

    best = min(tried, key=missing)
    engine = best.engine
    where = f"{engine.tp} x {engine.gpu.name}" if engine.tp > 1 else engine.gpu.name
    roomy = [gpu.name for gpu in GPUS if _fits(engine.shape, gpu, target)]
    return Problem(
        f"nothing fits: with {engine.precision.name} weights on {where},"
        f" {missing(best) / GIB:.1f} GiB per GPU are missing for one request of"
        f" {target.context} tokens",
        f"plan for {' or '.join(roomy) or 'a smaller model'}, or for a shorter context",
    )


def _fits(shape: ModelShape, gpu: Gpu, target: SizingTarget) -> bool:
    return any(
        option.fits
        for precision in _precisions(shape)
        if precision.compute in gpu.flops
        for option in sized(shape, gpu, precision, target)
    )


def _too_slow(fitting: list[Option], target: SizingTarget) -> Problem:
    alone = [speed_of(option.engine, target.load(1, 1)) for option in fitting]
    ttft, tpot = min(s.ttft_p99_s for s in alone), min(s.tpot_s for s in alone)
    asked = f"ttft={target.ttft_s:g}" + (f",tpot={target.tpot_s:g}" if target.tpot_s else "")
    return Problem(
        f"no replica meets {asked}, even with one request at a time: the best reachable"
        f" is ttft={ttft:.2g} and tpot={tpot:.2g} seconds",
        "relax the SLO, plan for a faster GPU or a smaller model, or assume shorter prompts",
    )


def _crossover(
    shape: ModelShape, gpu: Gpu, engine: RooflineEngine, target: SizingTarget
) -> int | None:
    eight = next((p for p in PRECISIONS if p.bits == 8 and p.compute in gpu.flops), None)
    four = fitted(W4A16, shape, engine.tp)
    if eight is None or four is None:
        return None
    light, fast = (replace(engine, precision=precision) for precision in (four, eight))
    return crossover_batch(light, fast, target.prompt + target.output // 2)


def _draft(option: Option, target: SizingTarget, drafter: Drafter) -> DraftPlan | None:
    draft = draft_of(option.engine, drafter.method, drafter.model, drafter.shape)
    if not _has_room(option, target, draft):
        return None
    return planned_draft(
        option.engine,
        draft,
        batch=ceil(option.in_flight / option.replicas),
        most=option.concurrency,
        context=target.prompt + target.output / 2,
        accepted=drafter.accepted,
    )


def _has_room(option: Option, target: SizingTarget, draft: DraftEngine) -> bool:
    """Return whether the draft's weights fit, and one request of the longest context in both
    caches."""
    engine = option.engine
    whole = kv_bytes_of(engine.shape, target.context, target.cache, engine.tp)
    need = draft.weight_bytes + draft.kv_token_bytes * target.context + whole
    return need <= option.budget.kv


def _warm(option: Option) -> int:
    """Return the warm replicas for the peak load of independent arrivals, which one moment in forty
    exceeds.

    The peak is the mean plus two standard deviations, each the mean's root (Poisson). At least one
    replica is warm, in case one is lost.
    """
    peak = option.in_flight + 2 * sqrt(option.in_flight)
    return max(1, ceil(peak / option.concurrency) - option.replicas)


def _overflow(
    options: list[Option], chosen: Option, target: SizingTarget
) -> OverflowReplicas | None:
    """Return replicas for one standard deviation more, in 4 bit; None if such a replica does not
    take fewer GPUs than one of the pool."""
    light = next((o for o in options if o.engine.precision.name == W4A16.name), None)
    if light is None or light.engine.tp >= chosen.engine.tp:
        return None
    more = replace(target, concurrency=ceil(sqrt(chosen.in_flight)), rate=None)
    option = option_for(light.engine, more)
    return OverflowReplicas(option, option.replicas)


def _cost_per_request(option: Option, target: SizingTarget) -> float | None:
    """Return the cost of the replicas at their load, without warm and overflow replicas."""
    if target.price_per_gpu_hour is None:
        return None
    return target.price_per_gpu_hour * option.engine.tp / 3600 / option.speed.requests_s
