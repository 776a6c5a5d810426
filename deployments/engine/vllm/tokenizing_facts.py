"""Facts of a vLLM engine about turning requests into tokens (`deployments.prompt`).

They are read from the engine's own renderer, after it has started. An engine with its own way of
rendering has no facts: the log gives the reason, and gateways do not know its prompts. The same
applies if its facts, tested here, do not give the tokens of its renderer.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer
from vllm.entrypoints.launchers.cli_args import resolve_default_chat_template_kwargs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.renderers import BaseRenderer
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.hf import (
    HfRenderer,
    resolve_chat_template,
    resolve_chat_template_content_format,
)

from deployments.prompt import ChatTemplate, MessagesFacts, PromptTokens, RendererFacts
from deployments.prompt.template_kwargs import RESERVED

logger = logging.getLogger(__name__)

# Classes that turn text into tokens with the Rust tokenizer, and the methods that do it.
_PLAIN_MODULES = {
    "transformers.tokenization_utils_base",
    "transformers.tokenization_utils_tokenizers",
    "vllm.tokenizers.hf",
}
_WAY_TO_TOKENS = ("__call__", "_encode_plus", "apply_chat_template", "get_chat_template")
# A first word, spaces, digits, other scripts and an emoji of several characters, without a newline
# at the end.
_PROBE = "Once  upon a time,\n\tin 2031: naïve café, Ελλάς, 東京, नमस्ते 👩‍🚀 a_b(c) "


def renderer_facts(
    renderer: BaseRenderer, args: Namespace, messages: MessagesFacts | None = None
) -> RendererFacts | None:
    """Return the facts of the engine with this `renderer`, whose server has `args`.

    None, with a line in the log, if gateways cannot render like it. Takes about a second for a
    large tokenizer; raises nothing.
    """
    try:
        why = _not_plain(renderer, args)
        facts = None if why else replace(_read(renderer, args), messages=messages)
        if facts is not None:
            why = _broken_promise(facts, renderer, args)
    except Exception as error:
        why = f"reading its renderer failed with {type(error).__name__}"
        logger.debug("%s", why, exc_info=True)
    if why:
        logger.warning(
            "cannot share the renderer with gateways; they route prompts by load: %s", why
        )
        return None
    return facts


def _not_plain(renderer: BaseRenderer, args: Namespace) -> str | None:
    config = renderer.model_config
    if type(renderer) is not HfRenderer:
        return f"{type(renderer).__name__} renders in its own way"
    if config.hf_config.model_type == "gpt_oss":
        return "gpt-oss prompts are in the Harmony format"
    if config.runner_type != "generate" or config.is_encoder_decoder:
        return "the model is not a decoder that generates text"
    if config.enable_prompt_embeds:
        return "prompts may contain embeddings"
    if renderer.tokenizer is None:
        return "the engine has no tokenizer"
    if type(getattr(renderer.tokenizer, "backend_tokenizer", None)) is not Tokenizer:
        return "the tokenizer is not one of the Rust library"
    if other := _other_ways(type(renderer.tokenizer)):
        return f"the tokenizer has its own {other}"
    if RESERVED & resolve_default_chat_template_kwargs(args).keys():
        return "default_chat_template_kwargs contains more than variables"
    return None


def _other_ways(tokenizer: type) -> str:
    """Return methods that a model's own tokenizer class replaces."""
    return ", ".join(
        f"{base.__name__}.{name}"
        for base in tokenizer.__mro__
        for name in _WAY_TO_TOKENS
        if name in vars(base) and base.__module__ not in _PLAIN_MODULES
    )


def _read(renderer: HfRenderer, args: Namespace) -> RendererFacts:
    tokenizer = renderer.tokenizer
    return RendererFacts(
        tokenizer=tokenizer.backend_tokenizer.to_str(),
        split_special_tokens=bool(tokenizer.split_special_tokens),
        special_tokens=dict(tokenizer.special_tokens_map),
        truncation_side=tokenizer.truncation_side,
        max_chars_per_token=tokenizer.max_chars_per_token,
        max_model_len=renderer.model_config.max_model_len,
        template=_template(renderer, args, None),
        tool_template=_template(renderer, args, []),
        template_kwargs=resolve_default_chat_template_kwargs(args),
        exclude_tools_when_tool_choice_none=args.exclude_tools_when_tool_choice_none,
    )


def _template(
    renderer: HfRenderer, args: Namespace, tools: list[Any] | None
) -> ChatTemplate | None:
    given, config = load_chat_template(args.chat_template), renderer.model_config
    text = resolve_chat_template(renderer.tokenizer, given, tools, model_config=config)
    if text is None:
        return None
    content_format = resolve_chat_template_content_format(
        given, tools, args.chat_template_content_format, renderer.tokenizer, model_config=config
    )
    return ChatTemplate(text, content_format)


def _broken_promise(facts: RendererFacts, renderer: HfRenderer, args: Namespace) -> str | None:
    ours = PromptTokens(facts)
    chat = {"messages": [{"role": "user", "content": _PROBE}]}
    completion = {"prompt": [_PROBE]}
    if ours.token_ids("/v1/completions", completion) != _completion(renderer, completion):
        return "its rebuilt tokenizer returns other tokens"
    theirs = _chat(renderer, args, facts, chat)
    if theirs is not None and ours.token_ids("/v1/chat/completions", chat) != theirs:
        return "its rebuilt chat template returns other tokens"
    return None


def _completion(renderer: HfRenderer, fields: Mapping[str, Any]) -> list[list[int]]:
    params = CompletionRequest(**fields).build_tok_params(renderer.model_config)
    prompts = [{"prompt": text} for text in fields["prompt"]]
    return [each["prompt_token_ids"] for each in renderer.render_cmpl(prompts, params)]


def _chat(
    renderer: HfRenderer, args: Namespace, facts: RendererFacts, fields: Mapping[str, Any]
) -> list[list[int]] | None:
    """Return the token ids of a chat; None if the template rejects a chat of one message."""
    request = ChatCompletionRequest(**fields)
    params = request.build_chat_params(
        load_chat_template(args.chat_template), args.chat_template_content_format
    ).with_defaults({**facts.template_kwargs, "tokenize": False})
    try:
        _, prompts = renderer.render_chat(
            [request.messages], params, request.build_tok_params(renderer.model_config)
        )
    except Exception as error:
        logger.info("the chat template failed on a chat of one message: %s", type(error).__name__)
        return None
    return [each["prompt_token_ids"] for each in prompts]
