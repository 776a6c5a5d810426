"""The most tokens that a request can use, before an engine has read it.

Budgets reserve it, and release what the request did not use. It is a bound, except for audio: how
many sequences an engine makes of that is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.gateway.intake.request import PoolRequest
from deployments.wire.inference_paths import EMBED, TEMPLATE_TOKENS, inference_path
from deployments.wire.message_parts import media_lengths


def most_tokens(request: PoolRequest, max_model_len: int | None) -> int | None:
    """Return the most tokens that a request can use; None if the gateway knows no bound."""
    api, parameters = inference_path(request.engine.path), request.parameters
    if not api.is_charged:
        return 0
    prompt_tokens, media = request.tokens, media_lengths(request.fields)
    if not request.prompt.known and not api.is_form:
        # a text has no more tokens than bytes; a template may precede each document
        read_bytes = len(request.engine.body) + parameters.repeated_bytes
        templates = api.document_template * parameters.sequences if api.documents else 0
        if api.path == EMBED and _are_plain(request.fields):
            templates = 0
        prompt_tokens = read_bytes + max(TEMPLATE_TOKENS, templates)
        # vLLM reads an embedding's text in pieces if it exceeds the context
        if max_model_len is not None and (api.generates or api.documents):
            whole = max_model_len * max(1, parameters.prompts)
            # an image has more tokens than its URL has bytes
            prompt_tokens = whole if media else min(prompt_tokens, whole)
    if parameters.pads:
        if max_model_len is None:
            return None
        prompt_tokens = max(prompt_tokens, max_model_len * parameters.sequences)
    if not api.generates:
        return prompt_tokens
    if parameters.n is None:
        return None
    if max_model_len is None:
        each = parameters.max_tokens
        return None if each is None else prompt_tokens + each * parameters.sequences
    each = (
        max_model_len
        if parameters.max_tokens is None
        else min(parameters.max_tokens, max_model_len)
    )
    if api.is_form:  # an engine splits audio into sequences of about 30 s; their number is unknown
        return prompt_tokens + each * parameters.sequences
    # a sequence and its prompt fit the model's length; the prompt counts with the first only
    return min(prompt_tokens + each * parameters.sequences, _longest(request, max_model_len))


def _are_plain(fields: Mapping[str, Any]) -> bool:
    """Return whether Cohere's texts are embedded as they are, without a task and its template."""
    return fields.get("texts") is not None and fields.get("input_type") is None


def _longest(request: PoolRequest, max_model_len: int) -> int:
    """Return the tokens of a request whose sequences all fill the model's length.

    A known single prompt counts once.
    """
    sequences = request.parameters.sequences
    if not request.prompt.known or request.parameters.prompts > 1:
        return max_model_len * sequences
    left = max(1, max_model_len - request.tokens)
    return request.tokens + left * sequences
