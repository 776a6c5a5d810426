"""Requests whose tokens a gateway does not claim to know: name -> path and body.

vLLM answers some of them and refuses others.
"""

from __future__ import annotations

from tests.deployments.prompt.shapes import (
    CHAT,
    COMPLETIONS,
    SHORT_TOOL,
    USER,
    WEATHER,
    Request,
    chat,
    completion,
    response,
    text,
)

UNKNOWN: dict[str, Request] = {
    "an image": chat(
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    ),
    "a part with more in it": chat({"role": "user", "content": text("one", mood=1)}),
    "a string as a part": chat({"role": "ipython", "content": ["one"]}),
    "a custom template": chat(USER, chat_template="{{ messages[0].content }}"),
    "a template as a variable": chat(USER, chat_template_kwargs={"chat_template": "x"}),
    "tools as a variable": chat(USER, chat_template_kwargs={"tools": [WEATHER]}),
    "tokens asked for": chat(USER, chat_template_kwargs={"tokenize": True}),
    "a later tool": chat(USER, tools=[{**SHORT_TOOL, "defer_loading": True}]),
    "tools of a developer": chat({"role": "developer", "content": "x", "tools": [WEATHER]}, USER),
    "a word for a switch": chat(USER, add_generation_prompt="no"),
    "a word for a number": chat(USER, truncate_prompt_tokens="7"),
    "tokens of another engine": chat(USER, kv_transfer_params={"prompt_token_ids": [1, 2]}),
    "no messages": chat(),
    "a message that is no object": (CHAT, {"messages": ["hello"]}),
    "messages that are no list": (CHAT, {"messages": "hello"}),
    "nothing": (CHAT, {}),
    "no prompt": (COMPLETIONS, {}),
    "prompts of two kinds": completion(["a", [1]]),
    "numbers that are no ids": completion([1.0, 2.0]),
    "true as an id": completion([True]),
    "no prompts": completion([]),
    "a suffix": completion("a", suffix="b"),
    "embeddings": completion(None, prompt_embeds="AAAA"),
    "no room": completion("Once", truncate_prompt_tokens=0),
    "history of the engine": response("Hello", previous_response_id="resp_1"),
    "encrypted reasoning": response([{"type": "reasoning", "encrypted_content": "x"}]),
    "a tool of the server": response("Hello", tools=[{"type": "web_search_preview"}]),
    "an image in an input": response(
        [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    ),
    "an unknown item": response([{"type": "item_reference", "id": "1"}]),
    "an unset variable": response("Hello", chat_template_kwargs={"mood": None}),
    "another path": ("/v1/embeddings", {"input": "Hello"}),
    "tokenize": ("/tokenize", {"prompt": "Hello"}),
}
