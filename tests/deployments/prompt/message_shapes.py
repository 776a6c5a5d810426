"""Anthropic's messages of every shape: name -> path and body. Text only."""

from __future__ import annotations

from typing import Any

from tests.deployments.prompt.shapes import CALL, USER, WEATHER_FUNCTION, Request, text

MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
BILLING = "x-anthropic-billing-header: cc_version=1; cch=00000;"
WEATHER = {
    "name": "weather",
    "description": WEATHER_FUNCTION["description"],
    "input_schema": WEATHER_FUNCTION["parameters"],
}
NOW = {"name": "now", "input_schema": {"properties": {}}, "cache_control": {"type": "ephemeral"}}
USED: dict[str, Any] = {
    "type": "tool_use",
    "id": CALL["id"],
    "name": "weather",
    "input": {"city": "Zürich", "days": 2},
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": CALL["id"], "content": content, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def messages(*given: dict[str, Any], **fields: Any) -> Request:
    return MESSAGES, {"model": "model", "max_tokens": 5, "messages": list(given), **fields}


def counted(*given: dict[str, Any], **fields: Any) -> Request:
    return COUNT_TOKENS, {"model": "model", "messages": list(given), **fields}


THOUGHT = {"type": "thinking", "thinking": "\nFrance. ", "signature": "s"}
MESSAGED: dict[str, Request] = {
    "a question": messages(USER),
    "a system prompt": messages(USER, system="Be brief."),
    "an empty system prompt": messages(USER, system=""),
    "no system prompt": messages(USER, system=None),
    "system blocks": messages(USER, system=text("Be brief.", "", "And kind.")),
    "a billing block": messages(USER, system=text(BILLING, "Be brief.")),
    "nothing but a billing block": messages(USER, system=text(BILLING)),
    "a billing line in one text": messages(USER, system=f"{BILLING}\nBe brief."),
    "a cached block": messages(USER, system=text("Be.", cache_control={"type": "ephemeral"})),
    "an inline system message": messages(USER, {"role": "system", "content": "Now in French."}),
    "inline system blocks": messages(
        USER, {"role": "system", "content": text(BILLING, "Now", " in French.")}, system="Be brief."
    ),
    "an inline billing line": messages(USER, {"role": "system", "content": BILLING}),
    "several turns": messages(USER, {"role": "assistant", "content": "Paris."}, USER),
    "blocks": messages(user(*text("one", "two", ""))),
    "one block": messages(user(*text("one"))),
    "no blocks": messages(USER, assistant(), USER, user()),
    "a thought": messages(USER, assistant(THOUGHT, *text("Paris.")), USER),
    "thoughts": messages(USER, assistant(THOUGHT, THOUGHT), USER),
    "a thought that is hidden": messages(
        USER, assistant({"type": "redacted_thinking", "data": "x"}, *text("Paris.")), USER
    ),
    "a tool": messages(USER, tools=[WEATHER]),
    "tools": messages(USER, tools=[WEATHER, NOW]),
    "no tools": messages(USER, tools=[]),
    "null tools": messages(USER, tools=None),
    "a strict tool": messages(USER, tools=[{**WEATHER, "strict": True}]),
    "a custom tool": messages(USER, tools=[{**WEATHER, "type": "custom"}]),
    "choice none": messages(USER, tools=[WEATHER], tool_choice={"type": "none"}),
    "choice any": messages(USER, tools=[WEATHER], tool_choice={"type": "any"}),
    "choice of a name": messages(
        USER, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}
    ),
    "one call at a time": messages(
        USER, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    ),
    "a call": messages(USER, assistant(USED), user(result("21 °C")), tools=[WEATHER]),
    "a call with words and a thought": messages(
        USER, assistant(THOUGHT, *text("Let me see."), USED), user(result("21")), tools=[WEATHER]
    ),
    "two calls and their results": messages(
        USER,
        assistant(USED, {**USED, "id": "2", "input": {}}),
        user(result("21"), {**result("22"), "tool_use_id": "2"}, *text("And Spain?")),
        tools=[WEATHER],
    ),
    "a call without input": messages(USER, assistant({**USED, "input": None}), user(result("21"))),
    "a result of blocks": messages(USER, assistant(USED), user(result(text("21", "°C")))),
    "a result of nothing": messages(USER, assistant(USED), user(result(None))),
    "a result of no call": messages(USER, user({"type": "tool_result", "content": "21"})),
    "a result that failed": messages(USER, assistant(USED), user(result("no", is_error=True))),
    "thinking enabled": messages(
        USER, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000
    ),
    "thinking adaptive": messages(USER, thinking={"type": "adaptive"}),
    "thinking disabled": messages(USER, thinking={"type": "disabled"}),
    "an effort": messages(USER, output_config={"effort": "high"}),
    "an effort, thinking disabled": messages(
        USER, output_config={"effort": "high"}, thinking={"type": "disabled"}
    ),
    "a schema": messages(
        USER, output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}
    ),
    "variables": messages(USER, chat_template_kwargs={"enable_thinking": False, "mood": "calm"}),
    "sampling": messages(
        USER, temperature=0, top_p=0.9, top_k=4, stop_sequences=["."], stream=True
    ),
    "metadata": messages(USER, metadata={"user_id": "a"}, service_tier="auto"),
    "a salt": messages(USER, cache_salt="salt"),
    "counted": counted(USER, system="Be brief.", tools=[WEATHER]),
    "counted, thinking disabled": counted(USER, thinking={"type": "disabled"}),
}
UNKNOWN_MESSAGES: dict[str, Request] = {
    "an image": messages(user(IMAGE)),
    "a result with an image": messages(USER, assistant(USED), user(result([IMAGE]))),
    "a result of the assistant": messages(USER, assistant(result("21"))),
    "a result that refers to a tool": messages(
        USER, user(result([{"type": "tool_reference", "tool_name": "weather"}]))
    ),
    "a call without an id": messages(USER, assistant({**USED, "id": None}), user(result("21"))),
    "another role": messages({"role": "developer", "content": "a"}),
    "a text that is none": messages(user({"type": "text", "text": 4})),
    "a tool that is added": messages(
        USER,
        {
            "role": "system",
            "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "a"}}],
        },
        tools=[WEATHER],
    ),
    "a tool that is loaded later": messages(USER, tools=[{**WEATHER, "defer_loading": True}]),
    "a tool of Anthropic's": messages(USER, tools=[{"type": "bash_20250124", "name": "bash"}]),
    "an effort of another kind": messages(USER, output_config={"effort": "huge"}),
    "thinking of another kind": messages(USER, thinking={"type": "deep"}),
}
