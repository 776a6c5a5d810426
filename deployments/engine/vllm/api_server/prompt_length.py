"""A prompt that fills the context is rejected with vLLM's error code for longer ones.

vLLM's renderer rejects a prompt of more tokens than the model's context. The error names the field
(`TokenizeParams` in vllm/renderers/params.py of vLLM 0.32). A prompt of exactly that length leaves
no token to generate. vLLM then counts 0 tokens for the answer (`get_max_tokens` in
vllm/entrypoints/serve/utils/api_utils.py). It rejects these as a `max_tokens` that the client never
sent. A response gets only a message (`_validate_generator_input` in
vllm/entrypoints/openai/responses/serving.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from vllm.entrypoints.openai.chat_completion import serving as chat_serving
from vllm.entrypoints.openai.completion import serving as completion_serving
from vllm.entrypoints.openai.responses import serving as responses_serving
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.exceptions import VLLMValidationError

from deployments.wire.context_length import PROMPT_TOO_LONG


def refuse_full(prompt_tokens: int, max_model_len: int) -> None:
    """Raise VLLMValidationError if the prompt leaves no room for a token."""
    if prompt_tokens >= max_model_len:
        raise VLLMValidationError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt"
            f" contains {prompt_tokens} input tokens, which leaves no room for an output token."
            " Please reduce the length of the input prompt.",
            parameter=PROMPT_TOO_LONG,
            value=prompt_tokens,
        )


@cache
def refuse_by_name() -> None:
    """Install in each API that generates. Repeated calls have no effect."""
    for module in (chat_serving, completion_serving, responses_serving):
        assert module.get_max_tokens is get_max_tokens
        module.get_max_tokens = _max_tokens
    serving = responses_serving.OpenAIServingResponses
    validate = serving._validate_generator_input

    def validated(self: Any, engine_input: Any) -> Any:
        refusal = validate(self, engine_input)  # it checks only the length
        if refusal is not None:
            refusal.error.param = PROMPT_TOO_LONG
        return refusal

    serving._validate_generator_input = validated


def _max_tokens(
    max_model_len: int, max_tokens: int | None, input_length: int, *more: Any, **named: Any
) -> int:
    refuse_full(input_length, max_model_len)
    return int(get_max_tokens(max_model_len, max_tokens, input_length, *more, **named))
