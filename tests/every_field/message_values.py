"""What fields of Anthropic's messages are given: first an ordinary value, then odd ones."""

from __future__ import annotations

from typing import Any

from tests.every_field.constraints import OBJECT, SCHEMAS

PATH = "/v1/messages"
TEXT = {"type": "text", "text": "Hi."}
USED = {"type": "tool_use", "id": "1", "name": "look", "input": {"city": "Rome"}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "1", "content": "21"}
_BLOCKS: tuple[Any, ...] = (
    TEXT,
    TEXT | {"text": ""},
    TEXT | {"text": None},
    TEXT | {"cache_control": {"type": "ephemeral"}},
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "thinking", "thinking": None},
    {"type": "redacted_thinking", "data": "x"},
    USED,
    USED | {"id": None},
    USED | {"name": None, "input": None},
    USED | {"input": {"": {"a": [None, 2.5]}}},
    RESULT,
    RESULT | {"content": None},
    RESULT | {"content": [TEXT]},
    RESULT | {"content": [{"type": "text"}]},
    RESULT | {"content": [{"type": "text", "text": None}]},
    RESULT | {"content": [{"type": "text", "text": 5}]},
    RESULT | {"content": [{}]},
    RESULT | {"content": [{"type": "image", "source": None}]},
    RESULT | {"content": [{"type": "image", "source": {"type": "base64", "data": "x"}}]},
    RESULT | {"content": [{"type": "tool_reference", "tool_name": "look"}]},
    RESULT | {"tool_use_id": None},
    RESULT | {"is_error": True},
    {"type": "tool_reference", "tool_name": "look"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
    {"type": "image", "source": {"type": "url", "url": "x"}},
    {"type": "image", "source": {"type": "url"}},
    {"type": "image", "source": {"type": "url", "url": None}},
    {"type": "image", "source": {}},
    {"type": "image"},
    {"type": "document", "source": {"type": "text", "data": "x"}},
    {"type": "search_result", "content": []},
    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "look"}},
    {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}},
    {"type": "tool_addition"},
    {"type": "no such type"},
)
MESSAGES: tuple[Any, ...] = (
    *([{"role": "user", "content": [block]}] for block in _BLOCKS),
    *([{"role": "user", "content": "Hi."}, {"role": "assistant", "content": [b]}] for b in _BLOCKS),
    *([{"role": "system", "content": [block]}] for block in _BLOCKS[:9] + _BLOCKS[-4:]),
    [{"role": "assistant", "content": [USED]}, {"role": "user", "content": [RESULT, TEXT]}],
)
TOOLS: tuple[Any, ...] = (
    [{"name": "look", "input_schema": OBJECT}],
    [{"name": "look", "description": "Look up.", "input_schema": OBJECT, "strict": True}],
    *([{"name": "look", "input_schema": schema, "strict": True}] for schema in SCHEMAS),
    [{"name": "look", "input_schema": {}}],
    [{"name": "", "input_schema": OBJECT}],
    [{"name": '\x00\n"', "input_schema": OBJECT}],
    [{"name": "look", "input_schema": OBJECT, "defer_loading": True}],
    [{"name": "look"}],
    [{"type": "bash_20250124", "name": "bash"}],
)
TOOL_CHOICES: tuple[Any, ...] = (
    {"type": "auto"},
    {"type": "any"},
    {"type": "none"},
    {"type": "tool", "name": "look"},
    {"type": "tool", "name": "no such tool"},
    {"type": "tool"},
    {"type": "auto", "disable_parallel_tool_use": True},
)
VALUES: dict[str, tuple[Any, ...]] = {
    "system": (
        "Be brief.",
        "",
        [TEXT],
        [TEXT | {"text": "x-anthropic-billing-header: 1"}],
        [{"type": "image", "source": {}}],
        [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "look"}}],
        [],
    ),
    "thinking": (
        {"type": "disabled"},
        {"type": "adaptive"},
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "enabled", "budget_tokens": 5},
        {"type": "enabled"},
        {"type": "deep"},
    ),
    "output_config": (
        {"format": {"type": "json_schema", "schema": OBJECT}},
        *({"format": {"type": "json_schema", "schema": schema}} for schema in SCHEMAS),
        {"format": {"type": "json_schema"}},
        {"format": None, "effort": None},
        {"effort": "high"},
        {"effort": "huge"},
    ),
    "stop_sequences": (["z"], ["a"] * 5, [" "], [""], ["x" * 100_000]),
}
