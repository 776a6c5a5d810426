"""The size of one replica, and the number of replicas for a load, for each way to split a model.

Pure arithmetic; `weights.plan.plan` chooses among the results.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import ceil

from common.errors import Problem
from weights.kernels.kernels import stored_in
from weights.model.cache_dtype import SIXTEEN_BIT_CACHE, CacheDtype
from weights.model.gpus import Gpu
from weights.model.memory import (
    FP8,
    W4A16,
    W8A8,
    Budget,
    Precision,
    budget_of,
    fitted,
    kv_bytes_of,
    kv_tokens,
)
from weights.model.model_shape import ModelShape
from weights.plan.roofline import OfferedLoad, RooflineEngine, Speed, speed_of

TENSOR_PARALLEL = (1, 2, 4, 8)
# vLLM's limit of sequences per step, which is also used for the memory.
MOST_SEQUENCES = 256
STEP_TOKENS = 8192


@dataclass(frozen=True)
class SizingTarget:
    """The target of a plan, in tokens and seconds.

    `context` is the longest request, prompt and answer; `prompt` and `output` the mean one's. One
    prompt in a hundred is longer than `long_prompt` (None: all have the mean length). 99 of 100
    requests must get their first token within `ttft_s`, and the mean one each token after it within
    `tpot_s`. `concurrency` is the mean number of requests in flight, `rate` that of arrivals per
    second; one of them is required, and of two the one with more replicas applies. Each replica has
    a host tier of `host_bytes` (`kv_tiers`), which may be 0.
    """

    context: int
    prompt: int
    output: int
    ttft_s: float
    tpot_s: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    cache: CacheDtype = SIXTEEN_BIT_CACHE
    utilization: float = 0.9
    price_per_gpu_hour: float | None = None
    long_prompt: int | None = None
    host_bytes: int = 0

    def load(self, concurrency: int, replicas: int) -> OfferedLoad:
        """Return the load on one of `replicas`, with `concurrency` requests in flight on each."""
        return OfferedLoad(concurrency, self.prompt, self.output, self.long_prompt, replicas)


@dataclass(frozen=True)
class Option:
    """One precision with its best tensor parallelism.

    `at_full_context` sequences of the longest context fit in memory. Each of the replicas takes up
    to `concurrency` mean requests at once, within memory and SLO; 0: it meets the SLO for none. All
    replicas have `in_flight` of them, evenly, at `speed`.
    """

    engine: RooflineEngine
    budget: Budget
    kv_token_bytes: int
    at_full_context: int
    concurrency: int
    in_flight: int
    replicas: int
    speed: Speed

    @property
    def kv_tokens(self) -> int:
        """Return the tokens in the KV cache of one replica, if no layer had a window."""
        engine = self.engine
        return kv_tokens(engine.shape, self.budget.kv, engine.cache, tp=engine.tp)

    def host_tokens(self, host_bytes: int) -> int:
        """Return the tokens in a host tier of this size. Each GPU of the replica has its part."""
        engine = self.engine
        return kv_tokens(engine.shape, host_bytes // engine.tp, engine.cache, tp=engine.tp)

    @property
    def fits(self) -> bool:
        return self.at_full_context >= 1

    @property
    def gpus(self) -> int:
        return self.engine.tp * self.replicas


def stored_precision(shape: ModelShape) -> Precision:
    """Return the precision in which an already quantized model is served."""
    known = {"FP8": FP8, "W8A8 INT8": W8A8, "W4A16": W4A16}
    kinds = stored_in(shape.quantization)
    words = {kind.words for kind in kinds}
    if len(words) != 1 or not words <= known.keys():
        raise Problem(
            f"the model is stored as {' and '.join(sorted(words)) or 'something unknown'}, which"
            " cannot be planned",
            "plan for the model it was made from",
        )
    precision = known[words.pop()]
    if precision is W4A16 and kinds[0].group > 0:
        return replace(W4A16, group_size=kinds[0].group, zero_points=kinds[0].zero_points)
    return precision


def _split(precision: Precision, shape: ModelShape, tp: int) -> Precision | None:
    if shape.quantization is None or precision.group_size is None:
        return fitted(precision, shape, tp)
    return fitted(precision, shape, tp, (precision.group_size,))


def sized(shape: ModelShape, gpu: Gpu, precision: Precision, target: SizingTarget) -> list[Option]:
    """Return one option for each number of GPUs that the model can be split over."""
    return [
        option_for(RooflineEngine(shape, gpu, split, tp, target.cache), target)
        for tp in TENSOR_PARALLEL
        if (split := _split(precision, shape, tp))
    ]


def option_for(engine: RooflineEngine, target: SizingTarget) -> Option:
    """Return the option with the replicas of that engine that the target needs."""
    shape, tp = engine.shape, engine.tp
    budget = budget_of(
        *(shape, engine.gpu, engine.precision, tp),
        *(target.utilization, STEP_TOKENS, MOST_SEQUENCES),
    )
    whole = kv_bytes_of(shape, target.context, target.cache, tp)
    mean = kv_bytes_of(shape, target.prompt + target.output, target.cache, tp)
    room = min(max(budget.kv, 0) // mean, MOST_SEQUENCES)
    replicas, most = _replicas(engine, target, room)
    in_flight = _in_flight(engine, target, replicas, most) if replicas else 0
    each = ceil(in_flight / replicas) if replicas else 1
    return Option(
        engine=engine,
        budget=budget,
        kv_token_bytes=kv_bytes_of(shape, 1, target.cache, tp),
        at_full_context=max(budget.kv, 0) // whole,
        concurrency=most,
        in_flight=in_flight,
        replicas=replicas,
        speed=speed_of(engine, target.load(each, max(replicas, 1))),
    )


def _replicas(engine: RooflineEngine, target: SizingTarget, room: int) -> tuple[int, int]:
    """Return how many replicas are needed, and how many requests in flight each then takes: with
    more replicas, prompts wait less.

    (0, 0) if a single request is too slow, or has no room.
    """
    rate, wanted = target.rate or 0.0, target.concurrency or 0
    least = _within_slo(engine, target, room, 1)
    if not least:
        return 0, 0

    def suffice(replicas: int) -> bool:
        most = _within_slo(engine, target, room, replicas)
        return replicas * most >= wanted and replicas * _finished_s(engine, target, most) >= rate

    enough = max(ceil(wanted / least), ceil(rate / _finished_s(engine, target, least)))
    replicas = bisect_left(range(1, enough), True, key=suffice) + 1
    return replicas, _within_slo(engine, target, room, replicas)


def _in_flight(engine: RooflineEngine, target: SizingTarget, replicas: int, most: int) -> int:
    """Return the requests in flight on all replicas. By Little's law, each replica finishes its
    arrivals."""
    rate = (target.rate or 0.0) / replicas

    def finished_s(each: int) -> float:
        return _finished_s(engine, target, each)

    arriving = bisect_left(range(1, most), rate, key=finished_s) + 1
    return max(target.concurrency or 0, arriving * replicas)


def _finished_s(engine: RooflineEngine, target: SizingTarget, each: int) -> float:
    """Return requests per second of one replica."""
    return speed_of(engine, target.load(each, 1)).requests_s


def _keeps(speed: Speed, target: SizingTarget) -> bool:
    return speed.ttft_p99_s <= target.ttft_s and (
        target.tpot_s is None or speed.tpot_s <= target.tpot_s
    )


def _within_slo(engine: RooflineEngine, target: SizingTarget, room: int, replicas: int) -> int:
    """Return the most requests in flight on each of `replicas`, up to `room`, that meet the SLO:
    both times grow with them."""
    low, high = 0, room
    while low < high:
        middle = (low + high + 1) // 2
        if _keeps(speed_of(engine, target.load(middle, replicas)), target):
            low = middle
        else:
            high = middle - 1
    return low
