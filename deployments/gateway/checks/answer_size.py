"""Limits on the size of an answer: its sequences, and the logprobs that it holds until its end.

A request of a few hundred bytes can ask for megabytes. An engine returns `prompt_logprobs` for each
token of the prompt, again for each of `n` answers. It builds all of them before it sends a byte.
The logprobs of generated tokens in a stream do not count, because each is sent at once.
"""

from __future__ import annotations

from deployments.gateway.api.request_codes import INVALID_VALUE
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.parameters import RequestParameters


def refuse_many_sequences(parameters: RequestParameters, max_n: int, most: int) -> None:
    """Raises ApiError 400 beyond `max_n` answers to a prompt, or `most` sequences in total."""
    if parameters.n is not None and parameters.n > max_n:
        message = (
            f"'n' requests {parameters.n:,} answers, but at most {max_n:,} are allowed."
            " Lower 'n', or send several requests."
        )
        raise ApiError(INVALID_VALUE, message, param="n")
    if parameters.sequences > most:
        prompts = f"{parameters.prompts:,} prompts" if parameters.prompts > 1 else "one prompt"
        answers = f", each with {parameters.n:,} answers" if (parameters.n or 1) > 1 else ""
        message = (
            f"The request has {prompts}{answers}. That is a total of {parameters.sequences:,}"
            f" sequences, but at most {most:,} are allowed. Split it into several requests with"
            " fewer prompts or a smaller 'n'."
        )
        param = "n" if parameters.prompts <= 1 else None
        raise ApiError(INVALID_VALUE, message, param=param)


def refuse_many_logprobs(
    parameters: RequestParameters,
    prompt_tokens: int,
    max_model_len: int | None,
    each_at_most: int,
    most: int,
) -> None:
    """Raises ApiError 400 beyond `most` logprobs in one answer.

    `prompt_tokens`: the sum over all prompts. `each_at_most`: the engine's `max_logprobs`. The
    engine enforces it, except for requests that name token ids.
    """
    of_prompt = of_answer = 0
    if parameters.prompt_logprobs is not None:
        with_each = 1 + min(parameters.prompt_logprobs, each_at_most)
        of_prompt = prompt_tokens * (parameters.n or 1) * with_each
    if parameters.logprobs is not None and not parameters.stream:
        named = parameters.names_logprobs
        with_each = 1 + (parameters.logprobs if named else min(parameters.logprobs, each_at_most))
        of_answer = _longest(parameters, max_model_len) * parameters.sequences * with_each
    if of_prompt + of_answer > most:
        param = "prompt_logprobs" if of_prompt > of_answer else "logprobs"
        message = (
            f"The answer may contain {of_prompt + of_answer:,} logprobs ({of_prompt:,} for tokens"
            f" of the prompt and {of_answer:,} for generated tokens), but at most {most:,} are"
            f" allowed. Lower {param!r}, 'n' or 'max_tokens', or send a shorter prompt."
        )
        raise ApiError(INVALID_VALUE, message, param=param)


def _longest(parameters: RequestParameters, max_model_len: int | None) -> int:
    """Return the tokens of the longest answer; 0 for a single answer without `max_tokens`.

    Such an answer is usually short.
    """
    if parameters.max_tokens is not None:
        return min(parameters.max_tokens, max_model_len or parameters.max_tokens)
    return max_model_len or 0 if parameters.sequences > 1 else 0
