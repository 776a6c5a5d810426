"""Rejects fields of other APIs and other releases that an engine would silently ignore.

A client that sends one relies on it: on a stored conversation, a tool that the server runs, or a
constraint. The error says what to send instead. A null, empty or false value has no effect and
passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from deployments.gateway.intake.errors import ApiError
from deployments.wire.inference_paths import CHAT, GENERATING, MESSAGES, RESPONSES

CONSTRAINTS = {
    "guided_json": "Send 'structured_outputs': {'json': ...}, or 'response_format'.",
    "guided_json_object": "Send 'response_format': {'type': 'json_object'}.",
    "guided_regex": "Send 'structured_outputs': {'regex': ...}.",
    "guided_choice": "Send 'structured_outputs': {'choice': [...]}.",
    "guided_grammar": "Send 'structured_outputs': {'grammar': ...}.",
}
_OTHER_CONSTRAINT = "Use 'structured_outputs' or 'response_format'."
OF_CHATS = {
    "functions": "Send 'tools', each {'type': 'function', 'function': {...}}.",
    "function_call": "Send 'tools' and 'tool_choice'.",
    "web_search_options": "No engine searches the web. Omit it, and send search results as text.",
}
OF_RESPONSES = {
    "conversation": "Antefix stores no conversations. Send the conversation so far in 'input'.",
    "prompt": "Antefix stores no prompt templates. Send the text in 'instructions' and 'input'.",
}
OF_MESSAGES = {
    "mcp_servers": "Call the servers yourself, and describe their tools in 'tools'.",
    "container": "Antefix runs no code. Omit it.",
}
# Defaults of `function_call` that clients send without functions.
_NO_CALL = ("none", "auto")
# Tools that OpenAI runs, or that its models know without a description. vLLM drops them.
BUILT_IN_TOOLS = (
    *("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "container"),
    *("computer", "local_shell", "shell", "apply_patch", "programmatic_tool_calling"),
)
# Anthropic's built-in tools, each followed by a version. vLLM requires their 'input_schema'.
ANTHROPIC_TOOLS = (
    *("web_search", "web_fetch", "code_execution", "computer", "bash", "text_editor", "memory"),
    *("tool_search_tool", "mcp_toolset"),
)
# The tools that vLLM runs if its `tool_server` is set.
_OF_A_TOOL_SERVER = ("web_search_preview", "code_interpreter", "container", "mcp")


def refuse_ignored_fields(
    path: str, fields: Mapping[str, Any], engine_args: Mapping[str, Any]
) -> None:
    """Raises ApiError 400 for such a field. Never raises another error."""
    if path not in GENERATING:
        return
    remedies = {name: _OTHER_CONSTRAINT for name in fields if name.startswith("guided_")}
    remedies |= CONSTRAINTS
    if path == CHAT:
        remedies |= OF_CHATS
    if path == MESSAGES:
        remedies |= OF_MESSAGES
        _refuse_built_in_tools(fields, ANTHROPIC_TOOLS)
    if path == RESPONSES:
        remedies |= OF_RESPONSES
        runs = _OF_A_TOOL_SERVER if engine_args.get("tool_server") else ()
        _refuse_built_in_tools(fields, BUILT_IN_TOOLS, runs)
    for name, remedy in remedies.items():
        value = fields.get(name)
        if value and not (name == "function_call" and value in _NO_CALL):
            why = f"{name[:100]!r} is not supported, and the engine would ignore it."
            _refuse(name, why, remedy)


def _refuse_built_in_tools(
    fields: Mapping[str, Any], built_in: Sequence[str], runs: Sequence[str] = ()
) -> None:
    """Raises ApiError 400 for a built-in tool, except one in `runs`, which the engine runs."""
    tools = fields.get("tools")
    listed = [("tools", tool) for tool in (tools if isinstance(tools, list) else ())]
    for field, tool in (*listed, ("tool_choice", fields.get("tool_choice"))):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind in runs:
            continue
        # `web_search_2025_08_26`, `computer_use_preview`
        if any(kind == name or kind.startswith(f"{name}_") for name in built_in):
            why = f"{field!r} has the built-in tool {kind[:100]!r}, which Antefix does not run."
            _refuse(field, why, "Describe it as an ordinary tool, and run it yourself.")


def _refuse(name: str, why: str, remedy: str) -> NoReturn:
    raise ApiError(400, f"{why} {remedy}", code="field_not_allowed", param=name[:100])
