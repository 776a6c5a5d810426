"""Three turns with pydantic-ai, with a tool's call and result: ... <base URL> <key> <model>

Writes one line of JSON: by API, the number of messages after the turns.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

BASE_URL, KEY, MODEL = sys.argv[1:4]
CALLED = [
    ModelResponse([ToolCallPart("weather", {"city": "Rome"}, tool_call_id="call_1")]),
    ModelRequest([ToolReturnPart("weather", {"sky": "clear"}, tool_call_id="call_1")]),
]


def messages_after_turns(model: Any) -> int:
    agent = Agent(model, instructions="Be brief.", model_settings={"max_tokens": 8, "seed": 1})

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def weather(city: str) -> str:
        """Return the weather in a city."""
        return f"clear in {city}"

    history: list[Any] = list(agent.run_sync("What is the weather in Rome?").all_messages())
    history = [history[0], *CALLED]
    history = agent.run_sync("And in Oslo?", message_history=history).all_messages()
    return len(agent.run_sync("Thanks.", message_history=history).all_messages())


openai = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
anthropic = AnthropicProvider(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY)
print(
    json.dumps(
        {
            "chat": messages_after_turns(OpenAIChatModel(MODEL, provider=openai)),
            "responses": messages_after_turns(OpenAIResponsesModel(MODEL, provider=openai)),
            "messages": messages_after_turns(AnthropicModel(MODEL, provider=anthropic)),
        }
    )
)
