"""A client of a model without tool calling reads what it can do, and no flags of a server."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

NAMED = {"type": "function", "function": {"name": "now"}}
PARSER = SimpleNamespace(tool_parser_cls=object())


async def rendered(tool_choice: Any, **facts: Any) -> str:
    """Render a chat with a renderer of which these facts are known."""
    from deployments.engine.vllm.api_server.tool_calling import refuse_without_parser

    async def render_chat(request: Any, skip_mm_cache: bool = False) -> str:
        return f"skips the cache: {skip_mm_cache}"

    known = {"use_harmony": False, "parser": None, "enable_auto_tools": False, **facts}
    tokenizer = SimpleNamespace(tokenizer=None)
    renderer = SimpleNamespace(renderer=tokenizer, render_chat=render_chat, **known)
    refuse_without_parser(renderer)
    request = SimpleNamespace(tool_choice=tool_choice)
    return str(await renderer.render_chat(request, skip_mm_cache=True))


@pytest.mark.parametrize("tool_choice", ["auto", "required", NAMED])
async def test_a_model_without_tool_calling_rejects_tools(tool_choice: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError) as rejected:
        await rendered(tool_choice)
    assert rejected.value.parameter == "tools"
    said = str(rejected.value)
    assert "This model does not support tool calling." in said and "ask the operators" in said
    assert "--" not in said


@pytest.mark.parametrize(
    ("tool_choice", "facts"),
    [
        (None, {}),
        ("none", {}),
        ("auto", {"enable_auto_tools": True}),
        ("auto", {"parser": PARSER}),
        ("required", {"parser": PARSER}),
        (NAMED, {"use_harmony": True}),
    ],
)
async def test_other_requests_are_rendered_as_before(
    tool_choice: Any, facts: dict[str, Any]
) -> None:
    assert await rendered(tool_choice, **facts) == "skips the cache: True"


async def test_vllm_itself_rejects_what_is_rejected_here() -> None:
    """If vLLM changes its conditions, or the facts that they need, this fails."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.renderers.online_renderer import OnlineRenderer

    renderer = object.__new__(OnlineRenderer)
    renderer.renderer = SimpleNamespace(tokenizer=None)
    renderer.parser, renderer.use_harmony, renderer.enable_auto_tools = None, False, False
    tools = [{"type": "function", "function": {"name": "now"}}]
    for choice in ("auto", "required", NAMED):
        request = ChatCompletionRequest(
            model="m",
            messages=[{"role": "user", "content": "Hi."}],
            tools=tools,
            tool_choice=choice,
        )
        answer = await renderer.render_chat(request)
        assert isinstance(answer, ErrorResponse), choice
        assert "--tool-call-parser" in answer.error.message
