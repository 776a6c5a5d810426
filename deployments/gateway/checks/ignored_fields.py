"""Fields of other APIs and other releases that an engine would ignore without a word.

A client that sends one relies on it: on a conversation that a server keeps, on a tool that a server
runs, on a constraint. It is refused with what to send instead. A value that is null, empty or false
asks for nothing and passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.parameters import CHAT, GENERATING, RESPONSES

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
# `function_call` without functions: a client's default.
_NO_CALL = ("none", "auto")
# What OpenAI runs itself, or its models know without a description. vLLM drops these.
BUILT_IN_TOOLS = (
    *("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "container"),
    *("computer", "local_shell", "shell", "apply_patch", "programmatic_tool_calling"),
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
    if path == RESPONSES:
        remedies |= OF_RESPONSES
        _refuse_built_in_tools(fields, bool(engine_args.get("tool_server")))
    for name, remedy in remedies.items():
        value = fields.get(name)
        if value and not (name == "function_call" and value in _NO_CALL):
            why = f"{name[:100]!r} is not supported, and the engine would ignore it."
            _refuse(name, why, remedy)


def _refuse_built_in_tools(fields: Mapping[str, Any], has_tool_server: bool) -> None:
    tools = fields.get("tools")
    listed = [("tools", tool) for tool in (tools if isinstance(tools, list) else ())]
    for name, tool in (*listed, ("tool_choice", fields.get("tool_choice"))):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or (has_tool_server and kind in _OF_A_TOOL_SERVER):
            continue
        # `web_search_2025_08_26`, `computer_use_preview`
        if any(kind == built_in or kind.startswith(f"{built_in}_") for built_in in BUILT_IN_TOOLS):
            why = f"{name!r} has the built-in tool {kind[:100]!r}, which nothing here runs."
            _refuse(name, why, "Describe it as a tool of type 'function', and run it yourself.")


def _refuse(name: str, why: str, remedy: str) -> NoReturn:
    raise ApiError(400, f"{why} {remedy}", code="field_not_allowed", param=name[:100])
