"""A prompt that fills the context is refused by the name that vLLM has for longer ones.

vLLM's renderer refuses a prompt of more tokens than the model's context, and says so by a field
(`TokenizeParams` in vllm/renderers/params.py of vLLM 0.32). One that is exactly as long leaves no
token to generate; vLLM refuses that later, in other places, with words only.
"""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError

TOO_LONG_A_PROMPT = "input_tokens"


def refuse_full(prompt_tokens: int, max_model_len: int) -> None:
    """Raises VLLMValidationError where the prompt leaves no room for a token."""
    if prompt_tokens >= max_model_len:
        raise VLLMValidationError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt"
            f" contains {prompt_tokens} input tokens, which leaves no room for an output token."
            " Please reduce the length of the input prompt.",
            parameter=TOO_LONG_A_PROMPT,
            value=prompt_tokens,
        )


def by_name(serving: Any) -> None:
    """The same of a response. `serving`: vLLM's OpenAIServingResponses, None without that API."""
    if serving is None:
        return
    validate = serving._validate_generator_input

    def validated(engine_input: Any) -> Any:
        refusal = validate(engine_input)  # it looks at nothing but the length
        if refusal is not None:
            refusal.error.param = TOO_LONG_A_PROMPT
        return refusal

    serving._validate_generator_input = validated
