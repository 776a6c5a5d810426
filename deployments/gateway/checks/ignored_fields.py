"""Fields of other APIs and other releases that an engine would ignore without a word.

A client that sends one relies on it: on a conversation that a server keeps, on a tool that a server
runs, on a constraint. It is refused with what to send instead. A value that is null, empty or false
asks for nothing and passes.
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
    "web_search_options": "No engine searches the web. Leave it out, and send what was found.",
}
OF_RESPONSES = {
    "conversation": "No conversations are kept here. Send what was said so far in 'input'.",
    "prompt": "No prompt templates are kept here. Send their text in 'instructions' and 'input'.",
}
OF_MESSAGES = {
    "mcp_servers": "Call the servers yourself, and describe their tools in 'tools'.",
    "container": "Nothing here runs code. Leave it out.",
}
# `function_call` without functions: a client's default.
_NO_CALL = ("none", "auto")
# What OpenAI runs itself, or its models know without a description. vLLM drops these.
BUILT_IN_TOOLS = (
    *("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "container"),
    *("computer", "local_shell", "shell", "apply_patch", "programmatic_tool_calling"),
)
# The same of Anthropic, where a version follows. vLLM asks for their 'input_schema'.
ANTHROPIC_TOOLS = (
    *("web_search", "web_fetch", "code_execution", "computer", "bash", "text_editor", "memory"),
    *("tool_search_tool", "mcp_toolset"),
)
# Those that vLLM runs where `tool_server` names who does the work.
_OF_A_TOOL_SERVER = ("web_search_preview", "code_interpreter", "container", "mcp")


def refuse_ignored_fields(
    path: str, fields: Mapping[str, Any], engine_args: Mapping[str, Any]
) -> None:
    """Raises ApiError 400. Never raises anything else."""
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
    """`runs`: those that the engine runs."""
    tools = fields.get("tools")
    listed = [("tools", tool) for tool in (tools if isinstance(tools, list) else ())]
    for field, tool in (*listed, ("tool_choice", fields.get("tool_choice"))):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind in runs:
            continue
        # `web_search_2025_08_26`, `computer_use_preview`
        if any(kind == name or kind.startswith(f"{name}_") for name in built_in):
            why = f"{field!r} has the built-in tool {kind[:100]!r}, which nothing here runs."
            _refuse(field, why, "Describe it as an ordinary tool, and run it yourself.")


def _refuse(name: str, why: str, remedy: str) -> NoReturn:
    raise ApiError(400, f"{why} {remedy}", code="field_not_allowed", param=name[:100])
