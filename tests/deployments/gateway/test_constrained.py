"""Which requests an engine compiles a grammar for."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.gateway.constrained import is_constrained

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        {"tools": [{"type": "function", "name": "f", "strict": True}]},
    ],
)
def test_one_that_is_to_keep_to_a_form_is_constrained(fields: dict[str, Any]) -> None:
    assert is_constrained(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": "json", "text": 5, "tools": 5, "structured_outputs": None},
        {"text": {"format": {"type": "text"}}},
        {"tools": [TOOL]},
        {"tools": [], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [5, {"function": 5}]},
    ],
)
def test_any_other_is_not(fields: dict[str, Any]) -> None:
    assert not is_constrained(fields)
