"""Whether speculative decoding pays, with which draft, how many tokens a step, and up to which
batch size.

A step that drafts k tokens runs the draft k times. It checks k + 1 tokens of each sequence in one
pass of the model, by the roofline. While that pass waits for memory, the check is nearly free. In
larger batches it is limited by computation, and rejected drafts are lost time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from weights.model.memory import BF16, kv_bytes_of, weight_bytes
from weights.model.model_shape import ModelShape
from weights.plan.roofline import LAYER_S, STEP_S, RooflineEngine, decode_step_s
from weights.speculation.draft_yield import expected_tokens

Method = Literal["ngram", "ngram_gpu", "eagle3", "draft_model"]

# Assumed until they are measured, by method. n-grams: the most that this project measured
# (docs/benchmarks/weights.md, 38%), rounded. Models: in the range that Leviathan et al. (arXiv
# 2211.17192) report for small drafts.
DRAFTS_ACCEPTED: Mapping[Method, float] = {
    "ngram": 0.4,
    "ngram_gpu": 0.4,
    "eagle3": 0.6,
    "draft_model": 0.6,
}
MOST_DRAFTED = 8
WORTH_DRAFTING = 1.05
# vLLM 0.32 runs a draft model's passes without CUDA graphs (standalone_ar/speculator.py). Assumed:
# a dozen kernels per layer, each with 20 microseconds of Python and launch.
EAGER_LAYER_S = 240e-6
# Assumed, in seconds per step. vLLM's model runner V2 looks up the n-grams of both methods on the
# GPU, with two small kernels. With `ngram`, vLLM does not schedule the next step ahead.
LOOKUP_S: Mapping[Method, float] = {"ngram": 1e-3, "ngram_gpu": 1e-4}


@dataclass(frozen=True)
class DraftEngine:
    """The source of drafts: n-grams of the request's text, an EAGLE-3 head of the model, or a
    smaller model.

    `model` is its id or path, `engine` its layers on the model's GPUs; None for n-grams.
    """

    method: Method
    model: str | None = None
    engine: RooflineEngine | None = None

    def passes_s(self, drafted: int, batch: int, context: float) -> float:
        """Return the seconds of a step with `drafted` drafted tokens, without its check."""
        if self.engine is None:
            return LOOKUP_S[self.method]
        one = decode_step_s(self.engine, batch, context) - STEP_S
        if self.method == "draft_model":
            one += self.engine.shape.layers * (EAGER_LAYER_S - LAYER_S)
        return drafted * one

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of its weights on each GPU."""
        engine = self.engine
        return weight_bytes(engine.shape, engine.precision, engine.tp) if engine else 0

    @property
    def kv_token_bytes(self) -> int:
        """Return the bytes of one token's KV cache, on each GPU."""
        engine = self.engine
        return kv_bytes_of(engine.shape, 1, engine.cache, engine.tp) if engine else 0


def draft_of(
    engine: RooflineEngine, method: Method, model: str | None, shape: ModelShape | None
) -> DraftEngine:
    """Return the draft. `shape` is the draft's; a head's may be unknown: one layer like the
    model's."""
    if method in LOOKUP_S:
        return DraftEngine(method)
    like_the_model = replace(engine.shape, layers=1, is_eagle3_head=method == "eagle3")
    own = like_the_model if shape is None else shape
    return DraftEngine(method, model, replace(engine, shape=own, precision=BF16))


@dataclass(frozen=True)
class DraftPlan:
    """A plan: `drafted` tokens a step, in batches of up to `up_to` sequences.

    `speedup` of decoding one sequence, and `at_load` of the planned batch (1: not drafted there),
    if the share `accepted` of drafts is right.
    """

    draft: DraftEngine
    drafted: int
    up_to: int
    speedup: float
    at_load: float
    accepted: float

    def speculative_config(self, tp: int, most_sequences: int) -> dict[str, Any]:
        """Return vLLM's config. At least the largest batch size has no drafts: vLLM captures full
        CUDA graphs only for the configured numbers, and speculation may be switched off."""
        up_to = max(1, min(self.up_to, most_sequences - 1))
        sizes = [[1, up_to, self.drafted]]
        if up_to < most_sequences:
            sizes.append([up_to + 1, most_sequences, 0])
        config: dict[str, Any] = {"method": self.draft.method}
        if self.draft.model is not None:
            config["model"] = self.draft.model
            config["draft_tensor_parallel_size"] = tp
        else:
            config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
        config["num_speculative_tokens"] = self.drafted
        config["num_speculative_tokens_per_batch_size"] = sizes
        return config


@dataclass(frozen=True)
class _Gain:
    engine: RooflineEngine
    draft: DraftEngine
    context: float
    accepted: float

    def of(self, batch: int, drafted: int) -> float:
        """Return the speedup over decoding without drafts."""
        plain = decode_step_s(self.engine, batch, self.context)
        checked = decode_step_s(self.engine, batch, self.context, drafted + 1)
        whole = checked + self.draft.passes_s(drafted, batch, self.context)
        return expected_tokens(self.accepted, drafted) * plain / whole

    def up_to(self, drafted: int, most: int) -> int:
        """Return the largest batch before the first at which it does not pay; 0 if it never
        does."""
        pays = (self.of(batch, drafted) >= WORTH_DRAFTING for batch in range(1, most + 1))
        return next((batch for batch, does in enumerate(pays) if not does), most)


def planned_draft(
    engine: RooflineEngine,
    draft: DraftEngine,
    *,
    batch: int,
    most: int,
    context: float,
    accepted: float | None = None,
) -> DraftPlan | None:
    """Return the draft length with the largest gain over all batches up to `batch`, that of the
    load.

    None if drafting does not pay for a single sequence. `most` sequences are in a batch; `context`
    tokens each. `accepted` None: the share of drafts that is assumed for the method.
    """
    accepted = DRAFTS_ACCEPTED[draft.method] if accepted is None else accepted
    gain = _Gain(engine, draft, context, accepted)

    def gained(drafted: int) -> float:
        up_to = gain.up_to(drafted, batch)
        return sum(gain.of(each, drafted) - 1 for each in range(1, up_to + 1))

    best = max(range(1, MOST_DRAFTED + 1), key=gained)
    if not (up_to := gain.up_to(best, most)):
        return None
    at_load = gain.of(batch, best) if batch <= up_to else 1.0
    return DraftPlan(draft, best, up_to, gain.of(1, best), at_load, accepted)
