"""Requests of every shape: name -> path and body. Text only, unless the name says otherwise."""

from __future__ import annotations

from typing import Any

from deployments.wire.inference_paths import INFERENCE_PATHS

Request = tuple[str, dict[str, Any]]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
# The paths whose prompts gateways read.
READ = [each.path for each in INFERENCE_PATHS.values() if each.prompt_form]

WEATHER_FUNCTION: dict[str, Any] = {
    "name": "weather",
    "description": "Das Wetter, 天気, °C",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
WEATHER = {"type": "function", "function": WEATHER_FUNCTION}
SHORT_TOOL = {"type": "function", "function": {"name": "now"}}
STRICT_TOOL = {
    "extra": 1,
    "function": {"strict": True, "parameters": {}, "name": "strict", "description": None},
    "type": "function",
}
CALL = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": 2}'},
}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is the capital of France?"}
ANSWER = {"role": "assistant", "content": "It is Paris"}
THOUGHT = {"role": "assistant", "content": "Paris.", "reasoning": "\nFrance. Its capital.\n"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "21 °C"}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"a": {}}}},
}


LONG = "All work and no play. " * 600  # longer than 2048 tokens


def text(*texts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each, **more} for each in texts]


def call(arguments: str, **more: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"id": "c", "type": "function", "function": function, **more}


def calling(*calls: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "tool_calls": list(calls), **more}, RESULT]


def chat(*messages: dict[str, Any], **fields: Any) -> Request:
    return CHAT, {"model": "model", "messages": list(messages), **fields}


def completion(prompt: Any, **fields: Any) -> Request:
    return COMPLETIONS, {"model": "model", "prompt": prompt, **fields}


def response(given: Any, **fields: Any) -> Request:
    return RESPONSES, {"model": "model", "input": given, **fields}


CHATS: dict[str, Request] = {
    "a question": chat(USER),
    "a system message": chat(SYSTEM, USER),
    "several turns": chat(SYSTEM, USER, ANSWER, {"role": "user", "content": "And of Spain?"}),
    "no text at all": chat({"role": "user", "content": ""}),
    "other scripts": chat({"role": "user", "content": "naïve 東京 नमस्ते 👩‍🚀 \u202ertl\u0000\x1b"}),
    "blanks and line ends": chat({"role": "user", "content": "  \n\tx\r\n\n  "}),
    "special tokens as text": chat({"role": "user", "content": "<|im_end|>\n<|im_start|>system"}),
    "Jinja as text": chat({"role": "user", "content": "{{ 7 * 7 }}{% raw %}"}),
    "a long text": chat({"role": "user", "content": "All work and no play. " * 200}),
    "a text too long": chat({"role": "user", "content": LONG}),
    "parts": chat({"role": "user", "content": text("one", "two", "")}),
    "parts of a system message": chat({"role": "system", "content": text("a", "b")}, USER),
    "parts of an answer": chat(USER, {"role": "assistant", "content": text("a", "b")}, USER),
    "no parts": chat({"role": "user", "content": []}),
    "a cached part": chat(
        {"role": "user", "content": text("one", cache_control={"type": "ephemeral"})}
    ),
    "names": chat({**SYSTEM, "name": "boss"}, {**USER, "name": "Ann"}, {**ANSWER, "name": "Bot"}),
    "a billing line": chat(
        {"role": "system", "content": "x-anthropic-billing-header: cch=1\nBe brief."}, USER
    ),
    "nothing but a billing line": chat(
        {"role": "system", "content": text("x-anthropic-billing-header: 1", "Be.")}, USER
    ),
    "a billing line of a user": chat({"role": "user", "content": "x-anthropic-billing-header: 1"}),
    "more fields in a message": chat({**USER, "mood": {"a": 1}, "task": "t"}),
    "an answer without content": chat(USER, {"role": "assistant"}, USER),
    "an answer of null": chat(USER, {"role": "assistant", "content": None}, USER),
    "a whole answer as it came": chat(
        USER,
        {**ANSWER, "refusal": None, "annotations": [], "audio": None, "function_call": None},
        USER,
    ),
    "an answer with no tool calls": chat(USER, {**ANSWER, "tool_calls": []}, USER),
    "an answer with null tool calls": chat(USER, {**ANSWER, "tool_calls": None}, USER),
    "reasoning": chat(USER, THOUGHT),
    "earlier reasoning": chat(USER, THOUGHT, USER),
    "reasoning_content": chat(USER, {**ANSWER, "reasoning_content": "hm"}),
    "both kinds of reasoning": chat(
        USER, {**ANSWER, "reasoning": "hm", "reasoning_content": "not this"}
    ),
    "reasoning in the content": chat(
        USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nParis"}, USER
    ),
    "a developer": chat({"role": "developer", "content": "Be brief."}, USER),
    "a developer of parts": chat(SYSTEM, {"role": "developer", "content": text("a", "b")}, USER),
    "a developer of parts, one empty": chat(
        SYSTEM, {"role": "developer", "content": text("", "b")}, USER
    ),
    "a developer later": chat(SYSTEM, USER, {"role": "developer", "content": "Now in French."}),
    "an own role": chat(USER, {"role": "ipython", "content": "42"}),
    "two system messages": chat(SYSTEM, USER, SYSTEM),
    "response_format": chat(USER, response_format=SCHEMA),
    "response_format json": chat(USER, response_format={"type": "json_object"}),
    "structured outputs": chat(USER, structured_outputs={"regex": "a+"}),
    "sampling": chat(USER, temperature=0, n=3, seed=1, stop=["."], max_tokens=5, logprobs=True),
    "a stream": chat(USER, stream=True, stream_options={"include_usage": True}),
    "unknown fields": chat(USER, foo=1, metadata={"a": "b"}),
    "a salt": chat(USER, cache_salt="salt"),
    "echo": chat(USER, echo=True),
}

TOOLED: dict[str, Request] = {
    "a tool": chat(SYSTEM, USER, tools=[WEATHER]),
    "tools": chat(USER, tools=[WEATHER, SHORT_TOOL, STRICT_TOOL]),
    "tool_choice none": chat(USER, tools=[WEATHER], tool_choice="none"),
    "tool_choice auto": chat(USER, tools=[WEATHER], tool_choice="auto"),
    "tool_choice required": chat(USER, tools=[WEATHER], tool_choice="required"),
    "tool_choice of a name": chat(
        USER, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}}
    ),
    "tool_choice null": chat(USER, tools=[WEATHER], tool_choice=None),
    "no parallel calls": chat(USER, tools=[WEATHER], parallel_tool_calls=False),
    "null tools": chat(USER, tools=None),
    "no tools": chat(USER, tools=[]),
    "a call": chat(USER, CALLS, RESULT, tools=[WEATHER]),
    "a call without tools": chat(USER, CALLS, RESULT),
    "a call with words": chat(USER, {**CALLS, "content": "Let me see."}, RESULT, ANSWER, USER),
    "two calls": chat(*calling(CALL, call('{"city": "Rome"}'))[:2], RESULT, RESULT),
    "a call with an index": chat(*calling(call('{"b": [1, 2.50], "a": null}', index=0))),
    "a call and reasoning": chat(*calling(CALL, reasoning="hm", content="")),
    "a call with a name": chat(*calling(CALL, name="Bot", content=None)),
    "no arguments": chat(*calling(call(""))),
    "broken arguments": chat(*calling(call('{"city": '))),
    "a list as arguments": chat(*calling(call("[1]"))),
    "a number as arguments": chat(*calling(call("4"))),
    "not-a-number arguments": chat(*calling(call('{"a": NaN, "b": 1e400, "c": 1E2}'))),
    "deep arguments": chat(*calling(call('{"ä": {"b": ["\\u00e9", "</tool_call>"]}}'))),
    "a result of parts": chat(USER, CALLS, {**RESULT, "content": text("21", "°C")}),
    "a result of parts, one empty": chat(USER, CALLS, {**RESULT, "content": text("21", "")}),
    "a result with a name": chat(USER, CALLS, {**RESULT, "name": "weather"}),
    "a result without an id": chat(USER, CALLS, {"role": "tool", "content": "21"}),
    "a result of no call": chat(USER, RESULT),
}

TEMPLATED: dict[str, Request] = {
    "no generation prompt": chat(USER, add_generation_prompt=False),
    "continue": chat(USER, ANSWER, add_generation_prompt=False, continue_final_message=True),
    "continue a blank end": chat(
        USER,
        {"role": "assistant", "content": "It is  "},
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "continue parts": chat(
        USER,
        {"role": "assistant", "content": text("It", "is")},
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "continue nothing": chat(
        USER,
        {"role": "assistant", "content": ""},
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "continue a user": chat(USER, add_generation_prompt=False, continue_final_message=True),
    "continue and begin": chat(USER, ANSWER, continue_final_message=True),
    "special tokens added": chat(USER, add_special_tokens=True),
    "documents": chat(USER, documents=[{"title": "Ä", "text": "b"}, {"title": "c", "text": "d"}]),
    "no documents": chat(USER, documents=[]),
    "thinking": chat(USER, chat_template_kwargs={"enable_thinking": True}),
    "no thinking": chat(USER, chat_template_kwargs={"enable_thinking": False}),
    "thinking null": chat(USER, chat_template_kwargs={"enable_thinking": None}),
    "thinking auto": chat(USER, chat_template_kwargs={"enable_thinking": "auto"}),
    "no template kwargs": chat(USER, chat_template_kwargs={}),
    "effort": chat(USER, reasoning_effort="high"),
    "no effort": chat(USER, reasoning_effort="none"),
    "null effort": chat(USER, reasoning_effort=None),
    "effort, no thinking": chat(
        USER, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}
    ),
    "effort as a variable": chat(USER, chat_template_kwargs={"reasoning_effort": "odd"}),
    "variables": chat(
        USER,
        chat_template_kwargs={
            "mood": {"ä": [1, None]},
            "style": "rich",
            "eos_token": "!",
            "date_string": "1 May",
            "unused": 1,
            "add_generation_prompt": False,
        },
    ),
    "a refusal of the template": chat({"role": "user", "content": "refuse me"}),
    "thinking left out": chat(USER, include_reasoning=False),
}

_TO_CUT: dict[str, Request] = {
    "chat": chat(SYSTEM, USER, max_tokens=4),
    "chat with special tokens": chat(SYSTEM, USER, add_special_tokens=True),
    "long chat": chat({"role": "user", "content": LONG}),
    "prompt": completion("All work and no play makes Jack a dull boy. Ends."),
    "ids": completion(list(range(20, 60))),
    "long prompt": completion(LONG, max_tokens=None),
    "long prompt, no output": completion(LONG, max_tokens=0),
}
_CUTS: dict[str, dict[str, Any]] = {
    "cut to 7": {"truncate_prompt_tokens": 7},
    "cut to 7 on the left": {"truncate_prompt_tokens": 7, "truncation_side": "left"},
    "cut to 7 on the right": {"truncate_prompt_tokens": 7, "truncation_side": "right"},
    "cut to fit": {"truncate_prompt_tokens": -1},
    "cut to fit on the right": {"truncate_prompt_tokens": -1, "truncation_side": "right"},
    "cut to 1000": {"truncate_prompt_tokens": 1000},
    "not cut": {"truncation_side": "right"},
    "cut to null": {"truncate_prompt_tokens": None, "truncation_side": None},
}
CUT: dict[str, Request] = {
    f"{name}, {how}": (path, {**fields, **cut})
    for name, (path, fields) in _TO_CUT.items()
    for how, cut in _CUTS.items()
}

COMPLETED: dict[str, Request] = {
    "a prompt": completion("Once upon a time"),
    "two prompts": completion(["Once", "upon  a\n time"]),
    "token ids": completion([1, 2, 3, 1]),
    "lists of token ids": completion([[1, 2], [3]]),
    "an empty prompt": completion(""),
    "a prompt without special tokens": completion("Once", add_special_tokens=False),
    "a prompt with special tokens in it": completion("<|im_start|>user<|im_end|> x"),
    "an echo": completion("Once", echo=True, logprobs=1, max_tokens=0),
    "many answers": completion(["Once"], n=2, best_of=2, max_tokens=None, stream=True),
    "ids out of vocabulary": completion([10**6]),
}

RESPONDED: dict[str, Request] = {
    "a string": response("Hello"),
    "instructions": response("Hello", instructions="Be brief."),
    "empty instructions": response("Hello", instructions=""),
    "an item": response([{"role": "user", "content": "Hello"}]),
    "typed items": response(
        [
            {"type": "message", "role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": "Hello"},
            {"type": "message", "role": "assistant", "content": "Hi"},
            {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
        ],
        instructions="Be kind.",
    ),
    "parts": response(
        [{"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}]
    ),
    "an answer of parts": response(
        [
            {"role": "user", "content": "Hello"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": t} for t in ("Hi", ", you")],
            },
            {"role": "user", "content": "And?"},
        ]
    ),
    "an answer as it came": response(
        [
            {"role": "user", "content": "Hello"},
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
            },
            {"role": "user", "content": "And?"},
        ]
    ),
    "calls": response(
        [
            {"role": "user", "content": "Weather?"},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "now", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "1", "output": "21 °C"},
            {"type": "function_call_output", "call_id": "2", "output": "12:00"},
            {"type": "message", "role": "assistant", "content": "It is warm."},
            {"type": "function_call", "call_id": "3", "name": "now", "arguments": ""},
            {"type": "function_call_output", "call_id": "3", "output": "12:01"},
        ],
        tools=[{"type": "function", **WEATHER_FUNCTION}],
    ),
    "a summary of reasoning": response(
        [
            {"role": "user", "content": "Hello"},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}]},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "And?"},
        ]
    ),
    "two answers in turn": response(
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "assistant", "content": "there"},
        ]
    ),
    "an unfinished answer": response(
        [
            {"role": "user", "content": "Hello"},
            {
                "type": "message",
                "role": "assistant",
                "status": "incomplete",
                "content": [{"type": "output_text", "text": "Hi"}],
            },
        ]
    ),
    "a tool": response("Hello", tools=[{"type": "function", "name": "now", "parameters": {}}]),
    "tool_choice none": response(
        "Hello", tools=[{"type": "function", "name": "now", "parameters": {}}], tool_choice="none"
    ),
    "no tools": response("Hello", tools=[]),
    "effort": response("Hello", reasoning={"effort": "low"}),
    "no effort": response("Hello", reasoning={"effort": None}),
    "variables": response("Hello", chat_template_kwargs={"enable_thinking": False, "mood": 1}),
    "a format": response("Hello", text={"format": {"type": "json_object"}}),
    "truncation auto": response(LONG, truncation="auto"),
    "truncation auto, output": response(LONG, truncation="auto", max_output_tokens=9),
    "truncation disabled": response("Hello", truncation="disabled"),
    "truncation null": response("Hello", truncation=None),
    "a stream, stored": response("Hello", stream=True, store=True),
}

KNOWN: dict[str, Request] = {
    f"{kind}: {name}": request
    for kind, requests in {
        "chat": CHATS,
        "tools": TOOLED,
        "template": TEMPLATED,
        "cut": CUT,
        "completion": COMPLETED,
        "response": RESPONDED,
    }.items()
    for name, request in requests.items()
}
