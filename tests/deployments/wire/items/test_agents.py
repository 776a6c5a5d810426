"""Later turns of agents, with all the fields that they send back, are never refused."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.wire.inference_paths import CHAT, MESSAGES, RESPONSES
from deployments.wire.items.kinds import first_fault

CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE_CODE: dict[str, Any] = {
    "system": [{"type": "text", "text": "You are an agent.", **CACHED}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "List the files.", **CACHED}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look.", "citations": None},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "Bash",
                    "input": {"command": "ls"},
                    "caller": {"type": "direct"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": "no such folder",
                    "is_error": True,
                    **CACHED,
                },
                {"type": "text", "text": "Try again."},
            ],
        },
        {"role": "system", "content": "Be brief."},
    ],
    "tools": [
        {"name": "Bash", "input_schema": {"type": "object"}, "eager_input_streaming": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
}
CODEX: dict[str, Any] = {
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You are an agent."}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
            "phase": "commentary",
            "end_turn": False,
        },
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "a.txt"},
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "2",
            "name": "apply_patch",
            "input": "*** Begin Patch",
        },
        {"type": "custom_tool_call_output", "call_id": "2", "output": "Done."},
    ],
    "tools": [
        {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object"}},
        {"type": "namespace", "name": "agents", "tools": []},
        {"type": "web_search", "external_web_access": False},
    ],
    "include": ["reasoning.encrypted_content"],
}
AI_SDK: dict[str, Any] = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello!"}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": '{"type":"text"}'},
    ]
}
OPENAI_AND_LITELLM: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi.", **CACHED}]},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "parsed": {"a": 1},
            "reasoning_content": "hm",
            "provider_specific_fields": {"refusal": None},
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "index": 0,
                    "function": {"name": "look", "arguments": "{}"},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "name": "look", "content": "21"},
    ]
}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (MESSAGES, CLAUDE_CODE),
        (RESPONSES, CODEX),
        (RESPONSES, AI_SDK),
        (CHAT, OPENAI_AND_LITELLM),
    ],
    ids=["Claude Code", "Codex", "the AI SDK", "OpenAI's SDK and LiteLLM"],
)
def test_a_later_turn_of_an_agent_passes(path: str, fields: dict[str, Any]) -> None:
    assert first_fault(path, fields) is None
