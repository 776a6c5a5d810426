"""The chats that vLLM makes of Anthropic's messages, recorded so that quick tests have them.

`python -m tests.deployments.prompt.recorded_messages` writes recorded_messages.json again, after an
upgrade of vLLM or a change of message_shapes.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.deployments.prompt.message_shapes import MESSAGED, MESSAGES

TABLE = Path(__file__).with_suffix(".json")
DISABLED_EFFORT = "low"
# An engine merges inline system messages if its template takes only one.
WAYS = {"inline": False, "merged": True}
FIELDS = ("messages", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs")

# A shape's name -> the chat of each way.
Recorded = dict[str, dict[str, Any]]


def recorded() -> Recorded:
    table: Recorded = json.loads(TABLE.read_text())
    return table


def by_vllm() -> Recorded:
    """Ask vLLM, whose import takes seconds."""
    return {
        name: {way: _chat(path, fields, merges) for way, merges in WAYS.items()}
        for name, (path, fields) in MESSAGED.items()
    }


def _chat(path: str, fields: dict[str, Any], merges: bool) -> dict[str, Any]:
    """Return the fields of vLLM's chat that decide its prompt, as JSON has them."""
    from vllm.entrypoints.anthropic.protocol import (
        AnthropicCountTokensRequest,
        AnthropicMessagesRequest,
    )
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    kind = AnthropicMessagesRequest if path == MESSAGES else AnthropicCountTokensRequest
    request = AnthropicServingMessages.to_chat_completion_request(
        kind(**fields), merge_inline_system=merges, disabled_thinking_effort=DISABLED_EFFORT
    )
    chat = request.model_dump(mode="json", include=set(FIELDS))
    return {name: chat[name] for name in FIELDS if chat[name] is not None}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(by_vllm(), ensure_ascii=False, indent=1) + "\n")
