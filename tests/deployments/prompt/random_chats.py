"""Chats at random: every role, form of content and switch, in any combination."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.deployments.prompt import shapes

WORDS = [
    *("the", "of", "and", "capital", "France", "Paris", "weather", "ALLCAPS", "don't", "1234567"),
    *("naïve", "東京", "👩\u200d🚀", "Ελλάς", "नमस्ते", "\u00a0", "e\u0301", "\ufeff", "\u200d"),
    *("\n", "\n\n", "\t", "  ", "{{", '"', "\\n", "```py\n", "x_y(z)", "https://a.b/c"),
    *("<think>", "</think>", "<|im_start|>", "<|im_end|>", "</tool_call>"),
]


def random_chat(seed: int) -> dict[str, Any]:
    """One body of /v1/chat/completions, always the same for a seed."""
    dice = Random(seed)
    fields: dict[str, Any] = {"messages": _messages(dice)}
    if dice.random() < 0.3:
        fields["tools"] = dice.sample([shapes.WEATHER, shapes.SHORT_TOOL, shapes.STRICT_TOOL], 2)
        fields["tool_choice"] = dice.choice(["none", "auto"])
    if dice.random() < 0.3:
        fields["chat_template_kwargs"] = dice.choice(
            [{"enable_thinking": dice.random() < 0.5}, {"mood": _text(dice)}, {"style": None}, {}]
        )
    if dice.random() < 0.2:
        fields["reasoning_effort"] = dice.choice(["none", "low", "high", None])
    if dice.random() < 0.2:
        fields["add_special_tokens"] = True
    if dice.random() < 0.2:
        fields |= {"add_generation_prompt": False, "continue_final_message": dice.random() < 0.5}
    if dice.random() < 0.2:
        fields["truncate_prompt_tokens"] = dice.choice([-1, 5, 20, 100])
        fields["truncation_side"] = dice.choice(["left", "right", None])
    return fields


def _text(dice: Random) -> str:
    words = dice.choices(WORDS, k=dice.choice([0, 1, 5, 40]))
    return dice.choice(["", " "]).join(words)


def _content(dice: Random) -> Any:
    if dice.random() < 0.6:
        return _text(dice)
    return shapes.text(*(_text(dice) for _ in range(dice.randrange(4))))


def _messages(dice: Random) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": _content(dice)}] if dice.random() < 0.5 else []
    for _ in range(dice.randrange(1, 7)):
        role = dice.choice(["user", "user", "assistant", "assistant", "tool", "developer"])
        message = {"role": role, "content": _content(dice)}
        if role == "assistant":
            message |= _beside(dice)
        elif role == "tool":
            message["tool_call_id"] = "call_1"
        if dice.random() < 0.1:
            message["name"] = "Ann"
        messages.append(message)
    return messages


def _beside(dice: Random) -> dict[str, Any]:
    beside: dict[str, Any] = {}
    if dice.random() < 0.4:
        arguments = {_text(dice): [dice.random(), None, _text(dice)]}
        beside["tool_calls"] = [
            shapes.call(json.dumps(arguments, ensure_ascii=dice.random() < 0.5))
            for _ in range(dice.randrange(3))
        ]
    if dice.random() < 0.3:
        beside[dice.choice(["reasoning", "reasoning_content"])] = _text(dice)
    return beside
