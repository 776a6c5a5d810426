"""Which requests have a constraint that an engine may have to try first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from deployments.wire.plain_constraints import needs_trial
from tests.any_constraint import JSON

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
SLOW: dict[str, Any] = {"type": "string", "maxLength": 255}


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "a+"}},
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"structured_outputs": {"json": SLOW}},
        {"structured_outputs": {"choice": ["x" * 5000]}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SLOW}}},
        {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
        {"text": {"format": {"type": "json_schema", "schema": SLOW}}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        {"tools": [{"type": "function", "name": "f", "strict": True}]},
    ],
)
def test_a_constraint_that_is_not_plain_may_need_a_trial(fields: dict[str, Any]) -> None:
    assert needs_trial(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"json": '{"type": "string"}'}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        {"text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"response_format": {"type": "text"}},
        {"response_format": "json", "text": 5, "tools": 5, "structured_outputs": None},
        {"text": {"format": {"type": "text"}}},
        {"tools": [TOOL]},
        {"tools": [], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [5, {"function": 5}]},
    ],
)
def test_other_requests_need_no_trial(fields: dict[str, Any]) -> None:
    assert not needs_trial(fields)


@given(JSON, JSON)
def test_needs_trial_never_raises_for_any_request(one: Any, other: Any) -> None:
    schema = {"type": "json_schema", "schema": one, "json_schema": other}
    fields = {"response_format": schema, "structured_outputs": {"json": other, "choice": one}}
    assert needs_trial(fields) in (True, False)
