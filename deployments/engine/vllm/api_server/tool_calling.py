"""Rejects a request with tools in a client's words if the model has no tool calling.

vLLM names flags of its server instead. Chat completions and messages pass here. Source of the
conditions: `render_chat` in vllm/renderers/online_renderer.py of vLLM 0.32.
"""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.utils.mistral import is_mistral_tokenizer

_NO_TOOLS = (
    "This model does not support tool calling. Send the request without 'tools', or ask the "
    "operators to enable tool calling."
)


def refuse_without_parser(renderer: Any) -> None:
    """Install in vLLM's OnlineRenderer."""
    render = renderer.render_chat

    async def render_chat(request: Any, **options: Any) -> Any:
        if not _can_call(renderer, request.tool_choice):
            raise VLLMValidationError(_NO_TOOLS, parameter="tools")
        return await render(request, **options)

    renderer.render_chat = render_chat


def _can_call(renderer: Any, tool_choice: Any) -> bool:
    """Return whether vLLM takes this choice of tools; None or "none": the request needs none."""
    if tool_choice in (None, "none") or renderer.use_harmony:
        return True
    if is_mistral_tokenizer(renderer.renderer.tokenizer):
        return True
    if renderer.parser is not None and renderer.parser.tool_parser_cls is not None:
        return True
    return tool_choice == "auto" and bool(renderer.enable_auto_tools)
