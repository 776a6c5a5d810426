"""A full context in Anthropic's words: agents recognize it only by these sentences.

Claude Code sends the request again with fewer tokens, or compacts its conversation, if it finds one
of the sentences with its numbers. vLLM's messages name a field that the client did not send, and
stop counting a prompt one token after the limit. So here a refused prompt is counted to its end:
text in a separate thread with a separate tokenizer, which delays no other request's prompt, and
prompts with media as vLLM itself reads them. `count_tokens` counts such a prompt, too.

Sources, of vLLM 0.32: vllm/entrypoints/anthropic/serving.py, `TokenizeParams` in
vllm/renderers/params.py and `build_tok_params` of the chat's request.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer
from vllm.entrypoints.anthropic.protocol import (
    AnthropicContextManagement,
    AnthropicCountTokensRequest,
    AnthropicCountTokensResponse,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError
from vllm.renderers.params import TokenizeParams

from deployments.wire.context_length import ANSWER_TOO_LONG, PROMPT_TOO_LONG, TEXT_TOO_LONG

_TOO_LONG = (PROMPT_TOO_LONG, TEXT_TOO_LONG)


class _Full(VLLMValidationError):  # type: ignore[misc]
    """Anthropic's error. vLLM would write the parameter behind the message."""

    def __str__(self) -> str:
        return str(self.args[0])


class _Rendered(Exception):
    """A prompt's text, before it is tokenized."""

    def __init__(self, text: str, add_special_tokens: bool) -> None:
        super().__init__()
        self.text = text
        self.add_special_tokens = add_special_tokens


class _WithoutLimit(TokenizeParams):  # type: ignore[misc]
    """Tokenizes a prompt of any length. Media need the model's processor, other text does not."""

    def apply_pre_tokenization(self, tokenizer: Any, prompt: Any) -> Any:
        if "multi_modal_data" in prompt or not _is_plain(tokenizer):
            return prompt
        raise _Rendered(prompt["prompt"], self.add_special_tokens)


class _CountedChat(ChatCompletionRequest):  # type: ignore[misc]
    """A chat whose prompt may have any length."""

    def build_tok_params(self, model_config: Any) -> TokenizeParams:
        return _WithoutLimit(None, add_special_tokens=self.add_special_tokens)


def tell_full_contexts(messages: Any) -> None:
    """Install in `messages`: vLLM's AnthropicServingMessages, or None if the model has none."""
    if messages is None:
        return
    counting = _Counting(messages)
    create, count = messages.create_messages, messages.count_tokens

    async def create_messages(request: AnthropicMessagesRequest, raw_request: Any = None) -> Any:
        limit = messages.model_config.max_model_len
        try:
            return await create(request, raw_request)
        except VLLMValidationError as error:
            is_too_long = error.parameter in _TOO_LONG
            if not is_too_long and request.max_tokens <= limit:
                raise
            tokens = await counting.tokens_of(request)
            if tokens is None:
                raise
            raise _full(tokens, request.max_tokens, limit) from None

    async def count_tokens(request: AnthropicCountTokensRequest, raw_request: Any = None) -> Any:
        try:
            return await count(request, raw_request)
        except VLLMValidationError as error:
            if error.parameter not in _TOO_LONG:
                raise
            if (tokens := await counting.tokens_of(request)) is None:
                raise
        managed = AnthropicContextManagement(original_input_tokens=tokens)
        return AnthropicCountTokensResponse(input_tokens=tokens, context_management=managed)

    messages.create_messages, messages.count_tokens = create_messages, count_tokens


def _full(tokens: int, max_tokens: int, limit: int) -> _Full:
    """Return Anthropic's error. A prompt must leave room for one token."""
    if tokens < limit:
        return _Full(
            f"input length and `max_tokens` exceed context limit: {tokens} + {max_tokens} > "
            f"{limit}, decrease input length or `max_tokens` and try again",
            parameter=ANSWER_TOO_LONG,
        )
    most = limit if tokens > limit else limit - 1
    message = f"prompt is too long: {tokens} tokens > {most} maximum"
    return _Full(message, parameter=PROMPT_TOO_LONG)


class _Counting:
    """Counts prompts of any length for one serving."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages
        self._thread = ThreadPoolExecutor(1, "counting")

    async def tokens_of(self, request: Any) -> int | None:
        """Return the number of tokens of the request's prompt; None if vLLM refuses it otherwise.

        `request`: one of AnthropicMessagesRequest or AnthropicCountTokensRequest.
        """
        effort = "none"
        if request.thinking is not None and request.thinking.type == "disabled":
            effort = await self._messages._get_disabled_thinking_effort()
        chat = self._messages.to_chat_completion_request(
            request,
            merge_inline_system=self._messages._merge_inline_system,
            disabled_thinking_effort=effort,
        )
        counted = _CountedChat.model_construct(chat.model_fields_set, **dict(chat))
        try:
            found = await self._messages.render_chat_request(counted)
        except _Rendered as rendered:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._length, rendered)
        if isinstance(found, ErrorResponse):
            return None
        return sum(len(prompt.get("prompt_token_ids") or ()) for prompt in found[1])

    def _length(self, rendered: _Rendered) -> int:
        special = rendered.add_special_tokens
        encoded = self._tokenizer.encode_batch_fast([rendered.text], add_special_tokens=special)
        return len(encoded[0])

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """A copy: others set their own truncation in the engine's tokenizer."""
        tokenizer = self._messages.renderer.tokenizer
        copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        copy.no_truncation()
        copy.no_padding()
        copy.encode_special_tokens = bool(tokenizer.split_special_tokens)
        return copy


def _is_plain(tokenizer: Any) -> bool:
    return type(getattr(tokenizer, "backend_tokenizer", None)) is Tokenizer
