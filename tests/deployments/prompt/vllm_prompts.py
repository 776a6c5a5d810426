"""What vLLM itself would feed its engine, without an engine.

    python -m tests.deployments.prompt.vllm_prompts

Takes {"setups": {name: {"model", "engine_args"}}, "requests": [[setup, path, fields], ...]} as
JSON on stdin. Writes one line of JSON for each setup, its facts (null for none), then one for
each request: its prompts' token ids, or {"refused": why}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.launchers.cli_args import resolve_default_chat_template_kwargs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers import BaseRenderer, renderer_from_config
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.online_renderer import OnlineRenderer

from deployments.engine.vllm.api_server.anthropic_messages import messages_facts
from deployments.engine.vllm.arguments.args import parse
from deployments.engine.vllm.tokenizing_facts import renderer_facts
from deployments.wire.items.completed import completed
from tests.deployments.prompt.message_shapes import COUNT_TOKENS, MESSAGES

# Of a setup's arguments, those that change the renderer itself.
RENDERER_ARGS = ("max_model_len", "tokenizer_mode", "enable_prompt_embeds")


@cache
def renderer_of(model: str, renderer_args: str) -> BaseRenderer:
    args = parse(model, "model", {**json.loads(renderer_args), "enforce_eager": True})
    return renderer_from_config(AsyncEngineArgs.from_cli_args(args).create_engine_config())


def online(renderer: BaseRenderer, args: Namespace) -> OnlineRenderer:
    """As vLLM's server makes it (vllm/entrypoints/launchers/api_server/app_state.py)."""
    return OnlineRenderer(
        model_config=renderer.model_config,
        renderer=renderer,
        request_logger=None,
        chat_template=load_chat_template(args.chat_template),
        chat_template_content_format=args.chat_template_content_format,
        trust_request_chat_template=args.trust_request_chat_template,
        trust_request_mm_kwargs=args.trust_request_mm_kwargs,
        enable_auto_tools=args.enable_auto_tool_choice,
        exclude_tools_when_tool_choice_none=args.exclude_tools_when_tool_choice_none,
        tool_parser=args.tool_call_parser,
        tool_strict_level=args.tool_strict_level,
        reasoning_parser=args.reasoning_parser,
        default_chat_template_kwargs=resolve_default_chat_template_kwargs(args),
    )


def messages_of(server: OnlineRenderer) -> AnthropicServingMessages:
    """As vLLM's server makes it, without the engine."""
    made = object.__new__(AnthropicServingMessages)
    made.online_renderer = server
    try:
        made._merge_inline_system = made._should_merge_inline_system(server)
    except TypeError:  # vLLM's server does not start with such a template
        made._merge_inline_system = True
    made.model_config = server.model_config
    made._disabled_thinking_effort = None
    return made


async def chat_of(
    server: OnlineRenderer, path: str, fields: dict[str, Any]
) -> ChatCompletionRequest:
    if path == "/v1/chat/completions":
        return ChatCompletionRequest(**fields)
    kind = AnthropicMessagesRequest if path == MESSAGES else AnthropicCountTokensRequest
    messages = messages_of(server)
    return messages.to_chat_completion_request(
        kind(**fields),
        merge_inline_system=messages._merge_inline_system,
        disabled_thinking_effort=await messages._get_disabled_thinking_effort(),
    )


async def prompts_of(server: OnlineRenderer, path: str, fields: dict[str, Any]) -> Any:
    fields = completed(path, fields)
    if path in ("/v1/chat/completions", MESSAGES, COUNT_TOKENS):
        chat = await chat_of(server, path, fields)
        rendered = await server.render_chat(chat)
        inputs = rendered if isinstance(rendered, ErrorResponse) else rendered[1]
    elif path == "/v1/completions":
        inputs = await server.render_completion(CompletionRequest(**fields))
    else:
        response = await server.render_responses(ResponsesRequest(**fields))
        inputs = response if isinstance(response, ErrorResponse) else [response.engine_input]
    if isinstance(inputs, ErrorResponse):
        return {"refused": inputs.error.message}
    return [each["prompt_token_ids"] for each in inputs]


async def answers(asked: dict[str, Any]) -> AsyncIterator[Any]:
    servers = {}
    for name, setup in asked["setups"].items():
        given = setup["engine_args"]
        args = parse(setup["model"], "model", given)
        of_renderer = {name: given[name] for name in RENDERER_ARGS if name in given}
        renderer = renderer_of(setup["model"], json.dumps(of_renderer))
        servers[name] = online(renderer, args)
        messages = await messages_facts(messages_of(servers[name]))
        facts = renderer_facts(renderer, args, messages)
        yield None if facts is None else facts.to_json().decode()
    for name, path, fields in asked["requests"]:
        try:
            yield await prompts_of(servers[name], path, fields)
        except Exception as error:
            yield {"refused": f"{type(error).__name__}: {error}"}


async def write(lines: Any) -> None:
    async for line in answers(json.load(sys.stdin)):
        print(json.dumps(line), file=lines, flush=True)


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    asyncio.run(write(out))
