"""What agents send, recorded from them, with shorter and made-up texts.

Codex CLI 0.171 with a provider and no other setting, and Claude Code 2.1.197 with the variables
of docs/clients.md. All fields, all types of tools and blocks, and the order are kept.
"""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]

_PATH = {"type": "string", "description": "A path."}
_OBJECT: Fields = {
    "type": "object",
    "properties": {"path": _PATH, "line": {"type": "number"}},
    "required": ["path"],
    "additionalProperties": False,
}


def _function(name: str, **more: Any) -> Fields:
    described = {"description": f"It does {name}.", "strict": False, "parameters": _OBJECT}
    return {"type": "function", "name": name, **described, **more}


def _item(role: str, *texts: str) -> Fields:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": content}


def codex(*more: Fields) -> Fields:
    """A request of Codex, with more items than its first turn has."""
    functions = ("exec_command", "write_stdin", "request_user_input", "view_image", "get_goal")
    agents = [_function(name) for name in ("close_agent", "spawn_agent")]
    return {
        "model": "small",
        "stream": True,
        "input": [
            _item("developer", "You are a coding agent. Be precise."),
            _item("developer", "<skills_instructions>None.</skills_instructions>"),
            _item("user", "<environment_context>  <shell>bash</shell></environment_context>"),
            _item("user", "Mend the failing test."),
            *more,
        ],
        "tools": [
            *map(_function, functions),
            {
                "type": "namespace",
                "name": "multi_agent_v1",
                "description": "Tools for sub-agents.",
                "tools": agents,
            },
            _function("update_goal"),
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a22412-d876-7bd0-a871-8d70cc079d04",
        "client_metadata": {"thread_id": "01a22412", "x-codex-turn-metadata": "{}"},
    }


# What a turn of Codex adds to the next one: the answer's items, and what its tools returned.
CODEX_TURN: tuple[Fields, ...] = (
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look at the test."}],
    },
    {
        "type": "function_call",
        "name": "exec_command",
        "arguments": '{"path": "/src/test.py", "line": 1}',
        "call_id": "call_1",
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "Exit code: 0"},
)

_CACHED = {"cache_control": {"type": "ephemeral"}}


def claude_code(*more: Fields, max_tokens: int = 4096) -> Fields:
    """A request of Claude Code, with more messages than its first turn has."""
    names = ("Bash", "Edit", "Glob", "Grep", "Read", "Task", "TodoWrite", "WebFetch", "Write")
    tools: list[Fields] = [
        {"name": name, "description": f"It does {name}.", "input_schema": _OBJECT} for name in names
    ]
    tools[-1] |= {"eager_input_streaming": True, **_CACHED}
    system = [
        "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli; cch=00000;",
        "You are a coding agent.",
        "Be precise.",
    ]
    asked: list[Fields] = [{"type": "text", "text": "<system-reminder>None.</system-reminder>"}]
    asked.append({"type": "text", "text": "Mend the failing test.", **_CACHED})
    return {
        "model": "small",
        "max_tokens": max_tokens,
        "stream": True,
        "system": [{"type": "text", "text": text, **_CACHED} for text in system],
        "messages": [{"role": "user", "content": asked}, *more],
        "tools": [*tools, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }


CLAUDE_CODE_BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "prompt-caching-scope-2026-01-05,effort-2025-11-24"
)
CLAUDE_CODE_TURN: tuple[Fields, ...] = (
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I look at the test.", "signature": "s"},
            {"type": "text", "text": "I look at the test."},
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "/src/a.py"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "def test(): ..."}],
                "is_error": False,
                **_CACHED,
            }
        ],
    },
)
