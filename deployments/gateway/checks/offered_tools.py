"""Decides which of a request's tools an engine gets, and rejects a choice of tools that it cannot
obey.

Agents always offer tools that a provider runs for its own models, such as a web search. A gateway
leaves an offered one out, because the request asks for nothing: the model then answers without it.
It rejects a `tool_choice` that demands one, a tool of an unknown type, and a choice of an unknown
type. It applies `allowed_tools`, which engines ignore or reject: the engine gets the allowed tools
only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from deployments.gateway.api.request_codes import FIELD_NOT_ALLOWED, INVALID_VALUE
from deployments.gateway.api.response_headers import LEFT_OUT_TOOLS_HEADER
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, TOKENIZE

# In an answer: the types of the offered tools that its engine did not get.
# Tools that OpenAI runs, or that its models know without a description.
BUILT_IN_TOOLS = (
    *("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "container"),
    *("computer", "local_shell", "shell", "apply_patch", "programmatic_tool_calling"),
    "tool_search",
)
# The same of Anthropic. With an `input_schema` such a tool is an ordinary one.
ANTHROPIC_TOOLS = (
    *("web_search", "web_fetch", "code_execution", "computer", "bash", "text_editor", "memory"),
    *("tool_search_tool", "mcp_toolset", "browser_toolset", "advisor"),
)
# The tools that vLLM runs if its `tool_server` is set.
_OF_A_TOOL_SERVER = ("web_search_preview", "code_interpreter", "container", "mcp")
# Without them, all deferred tools must be in the prompt from the beginning.
_FIND_DEFERRED_TOOLS = ("tool_search", "tool_search_tool")
_VERSION = re.compile("[a-z0-9_]{1,64}")


@dataclass(frozen=True)
class _Api:
    """The tools of one path, by type. `served`: the engine shows them to the model. `choices`: the
    types of `tool_choice` that it obeys."""

    served: tuple[str, ...]
    built_in: tuple[str, ...]
    choices: tuple[str, ...]
    is_anthropic: bool = False


_CHAT = _Api(("function",), BUILT_IN_TOOLS, ("function", "allowed_tools"))
_RESPONSES = _Api(
    ("function", "custom", "namespace"), BUILT_IN_TOOLS, ("function", "custom", "allowed_tools")
)
_MESSAGES = _Api(("custom",), ANTHROPIC_TOOLS, ("auto", "any", "tool", "none"), is_anthropic=True)
_APIS = {
    CHAT: _CHAT,
    TOKENIZE: _CHAT,
    RESPONSES: _RESPONSES,
    MESSAGES: _MESSAGES,
    COUNT_TOKENS: _MESSAGES,
}


@dataclass(frozen=True)
class OfferedTools:
    """`changes`: the fields that the engine gets instead of the client's. `left_out`: the types of
    tools that it does not get, without their versions."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def offered_tools(
    path: str, fields: Mapping[str, Any], engine_args: Mapping[str, Any]
) -> OfferedTools:
    """Return what an engine gets of a request's tools. Raises ApiError 400, and no other error."""
    api, tools, choice = _APIS.get(path), fields.get("tools"), fields.get("tool_choice")
    if api is None:
        return OfferedTools()
    runs = _OF_A_TOOL_SERVER if path == RESPONSES and engine_args.get("tool_server") else ()
    _check_choice(api, choice, runs)
    if not isinstance(tools, list | None):
        return OfferedTools()
    kept: list[Any] = []
    left_out: list[tuple[str, Mapping[str, Any]]] = []
    for index, tool in enumerate(tools or ()):
        base = _left_out_as(api, tool, index, runs)
        if base is None:
            kept.append(tool)
        else:
            left_out.append((base, tool))
    names = tuple(dict.fromkeys(base for base, _ in left_out))
    changes: dict[str, Any] = {}
    if left_out:
        _refuse_demanded(choice, kept, [tool for _, tool in left_out])
        if not set(_FIND_DEFERRED_TOOLS).isdisjoint(names):
            kept = [_at_once(tool) for tool in kept]
        changes["tools"] = kept
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        kept, mode = _allowed(api, choice, kept)
        changes |= {"tools": kept, "tool_choice": mode}
    if changes and not kept:
        # only responses take an empty list
        changes |= {"tools": [] if path == RESPONSES else None}
        changes |= {"tool_choice": "auto" if path == RESPONSES else None}
    return OfferedTools(changes, names)


def left_out_headers(left_out: Sequence[str]) -> dict[str, str]:
    """Return the header of an answer whose engine did not get these types of tools."""
    return {LEFT_OUT_TOOLS_HEADER: ", ".join(left_out)} if left_out else {}


def _left_out_as(api: _Api, tool: Any, index: int, runs: Sequence[str]) -> str | None:
    """Return the type of a tool that the engine does not run, without its version; None for another
    tool. Raises ApiError 400 for an unknown type."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "custom" and _has_grammar(tool):
        return "custom"
    if not isinstance(kind, str) or kind in (*api.served, *runs):
        return None
    if api.is_anthropic and isinstance(tool.get("input_schema"), dict):
        return None
    base = _base(kind, api.built_in)
    if base is None:
        named = f" ({name[:100]!r})" if (name := _name(tool)) else ""
        why = f"The tool 'tools[{index}]'{named} has the unknown type {kind[:100]!r}."
        _refuse("tools", why, f"Declare it as a tool of type {api.served[0]!r}.")
    return base


def _has_grammar(tool: Mapping[str, Any]) -> bool:
    """Return whether a custom tool's input has a grammar: vLLM takes only free text."""
    form = tool.get("format")
    return isinstance(form, dict) and form.get("type") == "grammar"


def _base(kind: str, names: Sequence[str]) -> str | None:
    """Return the name of which a type is a version, such as that of `web_search_2025_08_26`."""
    for name in names:
        version = kind.removeprefix(f"{name}_")
        if kind == name or (version != kind and _VERSION.fullmatch(version)):
            return name
    return None


def _check_choice(api: _Api, choice: Any, runs: Sequence[str]) -> None:
    """Raises ApiError 400 for a choice that no engine obeys."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(kind, str) or kind in (*api.choices, *runs):
        return
    if _base(kind, api.built_in) is not None:
        _refuse_demand(kind)
    known = ", ".join(repr(each) for each in api.choices)
    why = f"'tool_choice' has the unknown type {kind[:100]!r}."
    _refuse("tool_choice", why, f"Use one of: {known}.")


def _refuse_demanded(
    choice: Any, kept: Sequence[Any], left_out: Sequence[Mapping[str, Any]]
) -> None:
    """Raises ApiError 400 if the choice demands one of the tools that are left out."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in ("required", "any") and not kept:
        _refuse_demand(str(left_out[0]["type"]))
    named = _name(choice) if isinstance(choice, dict) else None
    if named is None or any(named in _names(tool) for tool in kept):
        return
    for tool in left_out:
        if named in (_name(tool), tool["type"]):
            _refuse_demand(str(tool["type"]))


def _allowed(api: _Api, choice: Mapping[str, Any], offered: Sequence[Any]) -> tuple[list[Any], str]:
    """Return the allowed ones of the offered tools, and the choice among them. Raises ApiError 400:
    for a form that no API has, and for a tool that is not offered."""
    holder = choice.get("allowed_tools")
    holder = holder if isinstance(holder, dict) else choice  # chats nest it
    mode, listed = holder.get("mode"), holder.get("tools")
    if mode not in ("auto", "required"):
        why = f"'tool_choice' of type 'allowed_tools' has the unknown mode {str(mode)[:100]!r}."
        _refuse_form(why, "Use 'auto' or 'required'.")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        why = "'tool_choice' of type 'allowed_tools' needs a list of objects in 'tools'."
        _refuse_form(why, "List the tools that the model may call.")
    known = {name for tool in offered for name in _names(tool)}
    names, built_in = set(), ""
    for each in listed:
        kind, name = each.get("type"), _name(each)
        if isinstance(kind, str) and _base(kind, api.built_in) is not None:
            built_in = built_in or kind
        elif name in known:
            names.add(name)
        else:
            why = f"'tool_choice' allows the tool {str(name)[:100]!r}, which is not in 'tools'."
            _refuse_form(why, "Add it to 'tools', or remove it from 'tool_choice'.")
    if mode == "required" and not names:
        if built_in:
            _refuse_demand(built_in)
        why = "'tool_choice' requires a tool call but allows no tools."
        _refuse_form(why, "List the tools that the model may call.")
    found = (_narrowed(tool, names) for tool in offered)
    return [tool for tool in found if tool is not None], mode


def _narrowed(tool: Any, names: set[Any]) -> Any:
    """Return the tool if it is named; a namespace with the named ones of its tools; otherwise
    None."""
    if _name(tool) in names:
        return tool
    inner = [each for each in _inner(tool) if not names.isdisjoint(_inner_names(tool, each))]
    return {**tool, "tools": inner} if inner else None


def _at_once(tool: Any) -> Any:
    """Return the tool without the request to show it to the model later."""
    if not isinstance(tool, dict):
        return tool
    changed = _not_deferred(tool)
    if isinstance(inner := tool.get("function"), dict):
        changed["function"] = _not_deferred(inner)
    if isinstance(inner := tool.get("tools"), list):  # of a namespace, which holds no other one
        changed["tools"] = [
            _not_deferred(each) if isinstance(each, dict) else each for each in inner
        ]
    return changed


def _not_deferred(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name != "defer_loading"}


def _names(tool: Any) -> list[Any]:
    """Return the names by which a choice may name a tool, or one in a namespace."""
    return [_name(tool), *(name for each in _inner(tool) for name in _inner_names(tool, each))]


def _inner_names(namespace: Any, tool: Any) -> tuple[Any, ...]:
    name = _name(tool)
    return (name, f"{_name(namespace)}__{name}")


def _inner(tool: Any) -> list[Any]:
    inner = tool.get("tools") if isinstance(tool, dict) else None
    return inner if isinstance(inner, list) and tool.get("type") == "namespace" else []


def _name(tool: Any) -> str | None:
    """Return the name in a tool or a choice of one. In chats, it is in `function`."""
    holder = tool if isinstance(tool, dict) else {}
    inner = holder.get("function")
    name = (inner if isinstance(inner, dict) else holder).get("name")
    return name if isinstance(name, str) else None


def _refuse_demand(kind: str) -> NoReturn:
    why = f"'tool_choice' requires the built-in tool {kind[:100]!r}, which Antefix does not run."
    _refuse("tool_choice", why, "Declare it as a tool of your own, and run it in the client.")


def _refuse_form(why: str, remedy: str) -> NoReturn:
    raise ApiError(INVALID_VALUE, f"{why} {remedy}", param="tool_choice")


def _refuse(name: str, why: str, remedy: str) -> NoReturn:
    raise ApiError(FIELD_NOT_ALLOWED, f"{why} {remedy}", param=name)
