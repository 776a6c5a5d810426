"""A coding agent's session, as Anthropic's API has it and as the same chat of OpenAI's.

Recorded shape, made-up text. A first system block differs in each request. Two system blocks and
the last message have `cache_control`. There are 20 tools, and turns of thoughts, calls and
results. A turn's prompt is that of the turn before with one more answer and its results.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

WORDS = """
parser cursor buffer socket branch commit handler fixture session router timeout worker
config module report header stream budget lookup counter scheduler registry payload adapter
""".split()  # noqa: SIM905  # a list of strings would be a page
TURNS, TOOLS = 40, 20
FOUND_WORDS = 16
# In some turns an answer has two calls, and the user adds a reminder.
TWO_CALLS_EVERY, REMINDER_EVERY = 5, 7
BILLING = "x-anthropic-billing-header: cc_version=2.1.7; cc_entrypoint=cli; cch="
CACHED = {"cache_control": {"type": "ephemeral"}}

Block = dict[str, Any]


def words(seed: object, count: int) -> str:
    """The same text for each seed, of about a token a word."""
    rng = random.Random(str(seed))
    return " ".join(rng.choice(WORDS) for _ in range(count))


@dataclass(frozen=True)
class Turn:
    """An answer of the model's, and what the agent sends back."""

    number: int

    @property
    def calls(self) -> list[Block]:
        count = 2 if self.number % TWO_CALLS_EVERY == 0 else 1
        return [
            {
                "type": "tool_use",
                "id": f"toolu_{self.number:02}_{call}",
                "name": f"tool_{(self.number + call) % TOOLS:02}",
                "input": {
                    "path": f"/src/{words((self.number, call), 1)}.py",
                    "line": 10 * self.number,
                },
            }
            for call in range(count)
        ]

    @cached_property
    def messages(self) -> list[Block]:
        """In Anthropic's form."""
        said = [
            {"type": "thinking", "thinking": words(("thought", self.number), 6), "signature": "s"},
            {"type": "text", "text": words(("said", self.number), 8)},
            *self.calls,
        ]
        results: list[Block] = []
        for call in self.calls:
            found = words(("found", call["id"]), FOUND_WORDS)
            content = found if self.number % 2 else [{"type": "text", "text": found}]
            results.append({"type": "tool_result", "tool_use_id": call["id"], "content": content})
        if self.number % REMINDER_EVERY == 0:
            results.append({"type": "text", "text": f"<system-reminder>{self.reminder}"})
        return [{"role": "assistant", "content": said}, {"role": "user", "content": results}]

    @property
    def reminder(self) -> str:
        return words(("reminder", self.number), 10)

    @cached_property
    def chat(self) -> list[Block]:
        """The same in OpenAI's form."""
        thinking, text, *calls = self.messages[0]["content"]
        said = {
            "role": "assistant",
            "reasoning": thinking["thinking"],
            "content": text["text"],
            "tool_calls": [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": json.dumps(call["input"])},
                }
                for call in calls
            ],
        }
        results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": words(("found", call["id"]), FOUND_WORDS),
            }
            for call in calls
        ]
        if self.number % REMINDER_EVERY == 0:
            results.append({"role": "user", "content": f"<system-reminder>{self.reminder}"})
        return [said, *results]


SYSTEM = [f"You are a coding agent. {words('who', 40)}", f"\n\n{words('rules', 200)}"]
TASK = f"Mend the failing test. {words('task', 40)}"
TOOL_PROPERTIES = {
    "path": {"type": "string", "description": "Where"},
    "line": {"type": "integer"},
}


def tools() -> list[Block]:
    """In Anthropic's form."""
    return [
        {
            "name": f"tool_{number:02}",
            "description": words(("tool", number), 12),
            "input_schema": {
                "type": "object",
                "properties": TOOL_PROPERTIES,
                "required": ["path"],
            },
        }
        for number in range(TOOLS)
    ]


def message_request(turns: int) -> dict[str, Any]:
    """The request after N turns, in Anthropic's API."""
    billing = {"type": "text", "text": f"{BILLING}{random.Random(turns).randbytes(3).hex()};"}
    messages: list[Block] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]
    for number in range(turns):
        messages += Turn(number).messages
    *before, last = messages[-1]["content"]
    messages[-1] = {"role": "user", "content": [*before, {**last, **CACHED}]}
    return {
        "system": [billing, *({"type": "text", "text": text, **CACHED} for text in SYSTEM)],
        "tools": tools(),
        "messages": messages,
        "metadata": {"user_id": "a developer"},
    }


def chat_request(turns: int) -> dict[str, Any]:
    """The same request as a chat completion."""
    messages: list[Block] = [
        {"role": "system", "content": "".join(SYSTEM)},
        {"role": "user", "content": TASK},
    ]
    for number in range(turns):
        messages += Turn(number).chat
    functions = [
        {
            "name": tool["name"],
            "description": tool["description"],
            "parameters": tool["input_schema"],
        }
        for tool in tools()
    ]
    return {
        "tools": [{"type": "function", "function": function} for function in functions],
        "messages": messages,
    }
