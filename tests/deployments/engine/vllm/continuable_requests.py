"""Requests that a real engine answers and resumes: all that may go wrong where it is cut."""

from __future__ import annotations

from deployments.wire.inference_paths import RESPONSES
from tests.deployments.engine.vllm.continuable_engine import ADAPTER
from tests.deployments.engine.vllm.cut_answers import Body

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell of the harbour, the ferry and the lighthouse. " * 6}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "floors": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        "tall": {"type": "boolean"},
    },
    "required": ["name", "floors", "tall"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "climb", "parameters": SCHEMA}}
SEEDED = {"temperature": 1, "seed": 11, "max_tokens": 18, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_tokens": 18, "ignore_eos": True}
# its language is one that no tokenizer has words for: characters of several tokens
SPLIT = {"structured_outputs": {"regex": "[\U0001f600-\U0001f64f]{6}"}}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
END_OF_TEXT = 2
STREAMS: dict[str, tuple[str, Body]] = {
    "greedy": (CHAT, GREEDY | USAGE),
    "seeded": (CHAT, SEEDED),
    "completion": (COMPLETIONS, SEEDED | USAGE),
    "two choices": (CHAT, SEEDED | {"n": 2}),
    "three completions": (COMPLETIONS, SEEDED | {"n": 3, "presence_penalty": 1.5}),
    "presence and frequency": (
        COMPLETIONS,
        GREEDY | {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    ),
    "repetition": (CHAT, GREEDY | {"repetition_penalty": 1.8}),
    "logprobs of a chat": (CHAT, SEEDED | {"logprobs": True, "top_logprobs": 3}),
    "logprobs of a completion": (COMPLETIONS, SEEDED | {"logprobs": 2}),
    "at least ten tokens": (
        COMPLETIONS,
        SEEDED | {"ignore_eos": False, "min_tokens": 10, "logit_bias": {str(END_OF_TEXT): 100}},
    ),
    "echo": (COMPLETIONS, SEEDED | {"echo": True}),
    "token ids": (COMPLETIONS, SEEDED | {"return_token_ids": True}),
    "schema": (
        CHAT,
        {
            "temperature": 1,
            "seed": 3,
            "max_tokens": 60,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "tower", "schema": SCHEMA},
            },
        },
    ),
    "regex": (CHAT, SEEDED | {"structured_outputs": {"regex": "(ab?c){3,9}[0-9]{4}"}}),
    "characters of several tokens": (CHAT, SEEDED | SPLIT | {"max_tokens": 40}),
    "named tool": (
        CHAT,
        {
            "temperature": 1,
            "seed": 5,
            "max_tokens": 60,
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "climb"}},
        },
    ),
    "required tool": (
        CHAT,
        {
            "temperature": 1,
            "seed": 5,
            "max_tokens": 80,
            "tools": [FUNCTION],
            "tool_choice": "required",
        },
    ),
    "adapter": (CHAT, SEEDED | {"model": ADAPTER}),
    "response": (RESPONSES, {"temperature": 1, "seed": 11, "max_output_tokens": 18}),
    "response with a tool": (
        RESPONSES,
        {
            "temperature": 1,
            "seed": 5,
            "max_output_tokens": 60,
            "tools": [{"type": "function", "name": "climb", "parameters": SCHEMA}],
            "tool_choice": {"type": "function", "name": "climb"},
        },
    ),
}
# At this temperature it takes no certain bias for a thought to end in the middle.
THINKING = {
    "chat_template_kwargs": {"thinking": True},
    "temperature": 2,
    "seed": 11,
    "stream": True,
}
THOUGHTS: dict[str, tuple[str, Body]] = {
    "a chat": (CHAT, THINKING | {"max_tokens": 24}),
    "a chat with a schema": (CHAT, STREAMS["schema"][1] | THINKING | {"max_tokens": 90}),
    "a response": (RESPONSES, THINKING | {"max_output_tokens": 24}),
}


def request_body(path: str, body: Body) -> Body:
    text = MESSAGES[0]["content"]
    prompts: Body = {CHAT: {"messages": MESSAGES}, RESPONSES: {"input": text}}
    prompt: Body = prompts.get(path, {"prompt": text})
    return prompt | body
