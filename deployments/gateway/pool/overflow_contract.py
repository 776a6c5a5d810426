"""The overflow contract: a request's needs and a pool's offers, from the fields of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from autoscaling.admission.overflow import Needs, Offers, refusal
from deployments.fleet.pool import Pool
from deployments.gateway.intake.parameters import VOCABULARY, parameters_of
from deployments.gateway.intake.request import EngineRequest, PoolRequest
from deployments.wire.inference_paths import CHAT, COMPLETIONS, MESSAGES
from deployments.wire.message_parts import parts_in
from router.board.load import ReplicaLoad

_OVERFLOWING_PATHS = (CHAT, COMPLETIONS, MESSAGES)
# OpenAI's value, and Anthropic's.
_NO_TOOLS = ("none", {"type": "none"})
# vLLM's default of --max-logprobs.
_MAX_LOGPROBS = 20
_TOKEN_ID_FIELDS = (
    *("logit_bias", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"),
    "prompt_embeds",
)
_FORMAT_FIELDS = ("response_format", "structured_outputs", "output_config")
_MEDIA_PARTS = (
    *("image_url", "input_audio", "video_url", "audio_url", "image_embeds", "file"),
    "image",
)


def refusal_of(
    request: PoolRequest, origin: Pool, pool: Pool, loads: Iterable[ReplicaLoad]
) -> str | None:
    """Return why `pool` must not serve a request for the pool `origin`; None if it may.

    `loads`: the replicas of `pool`. Never raises.
    """
    extra = request.fields.get("vllm_xargs")
    if isinstance(extra, Mapping) and extra.keys() - set(pool.allowed_xargs):
        return "the overflow model does not accept all of the request's 'vllm_xargs'"
    engine = request.engine
    adapter = engine.model if engine.adapter or engine.model in origin.lora_names else None
    needs = needs_of(engine.path, request.fields, adapter, request.tokens)
    return refusal(needs, offers_of(pool, origin.model, loads))


def needs_of(
    path: str, fields: Mapping[str, Any], adapter: str | None, prompt_tokens: int
) -> Needs:
    """Return what a request needs from another model. `adapter`: the adapter that it asks for.

    Never raises.
    """
    parameters = parameters_of(path, fields)
    logprobs = [
        count for count in (parameters.logprobs, parameters.prompt_logprobs) if count is not None
    ]
    return Needs(
        chat_or_completion=path in _OVERFLOWING_PATHS,
        tokens=prompt_tokens + (parameters.max_tokens or 0),
        adapter=adapter,
        tools=bool(fields.get("tools")) and fields.get("tool_choice") not in _NO_TOOLS,
        response_format=any(_constrains(fields.get(name)) for name in _FORMAT_FIELDS),
        logprobs=max(logprobs, default=0),
        token_ids=_prompt_is_tokens(fields.get("prompt"))
        or any(fields.get(name) for name in _TOKEN_ID_FIELDS),
        images=any(p.get("type") in _MEDIA_PARTS for p in parts_in(fields.get("messages"))),
    )


def offers_of(pool: Pool, asked_model: str, loads: Iterable[ReplicaLoad]) -> Offers:
    """Return what an overflow pool offers to requests for a pool with the weights `asked_model`."""
    args = pool.engine_args
    longest = [load.max_model_len for load in loads if load.max_model_len]
    set_length = args.get("max_model_len")
    if not longest and isinstance(set_length, int) and set_length > 0:  # -1: vLLM chooses
        longest = [set_length]
    return Offers(
        max_model_len=min(longest, default=None),
        tools=args.get("enable_auto_tool_choice") is True,
        response_format=True,  # vLLM can constrain the output of any model
        max_logprobs=most_logprobs(pool),
        same_model=pool.model == asked_model,
        images=pool.model == asked_model,
    )


def renamed(request: EngineRequest, model: str) -> EngineRequest:
    """Return the request for another model. Its answer then has that model's name."""
    return replace(request, model=model, is_renamed=True, adapter=None)


def most_logprobs(pool: Pool) -> int:
    """Return the most logprobs per token that the pool's engines accept."""
    most = pool.engine_args.get("max_logprobs")
    if not isinstance(most, int):
        return _MAX_LOGPROBS
    return most if most >= 0 else VOCABULARY


def _constrains(value: object) -> bool:
    return bool(value) and not (isinstance(value, Mapping) and value.get("type") == "text")


def _prompt_is_tokens(prompt: object) -> bool:
    while isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    return isinstance(prompt, int)
