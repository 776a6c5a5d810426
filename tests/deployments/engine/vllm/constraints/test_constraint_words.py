"""A word of a schema that nothing enforces is refused with its name and place."""

from __future__ import annotations

import json
from contextvars import copy_context
from typing import Any

import pytest
from hypothesis import given

pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from deployments.engine.vllm.constraints.constraint_fields import (
    Sent,
    current,
    sent_to_chat,
    sent_to_messages,
    sent_to_responses,
)
from deployments.engine.vllm.constraints.constraint_words import (
    NEEDS_TYPE,
    UNENFORCED,
    unenforced_word,
)
from deployments.engine.vllm.grammars.constraints import Unfit, refuse_unenforced
from tests.any_constraint import JSON, PATTERNS
from tests.deployments.engine.vllm.known_constraints import ORDINARY

TEXT = {"type": "string"}
PLACES: dict[str, Any] = {
    "": lambda inner: inner,
    "/properties/a": lambda inner: {"properties": {"a": inner}},
    "/properties/a~1b/items": lambda inner: {"properties": {"a/b": {"items": inner}}},
    "/$defs/not": lambda inner: {"$defs": {"not": inner}},
    "/anyOf/1": lambda inner: {"anyOf": [TEXT, inner]},
    "/allOf/0/additionalProperties": lambda inner: {"allOf": [{"additionalProperties": inner}]},
    "/patternProperties/^x": lambda inner: {"patternProperties": {"^x": inner}},
    "/prefixItems/0": lambda inner: {"prefixItems": [inner]},
}
WORDS: dict[str, Any] = {
    "not": {"not": TEXT},
    "then": {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "else": {"if": {"required": ["a"]}, "else": {"required": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"required": ["b"]}}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependencies": {"dependencies": {"a": ["b"]}},
    "propertyNames": {"propertyNames": {"type": "string", "pattern": "^a"}},
    "contains": {"contains": TEXT},
    "pattern": {"pattern": "^a$"},
    "maxLength": {"maxLength": 5, "title": "Name"},
    "minimum": {"minimum": 5},
    "multipleOf": {"multipleOf": 5},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "$recursiveRef": {"$recursiveRef": "#"},
}
REMOTE = ("https://example.com/schema.json", "other.json#/$defs/a", "#anchor", "urn:example:a")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("word", WORDS)
def test_an_unenforced_keyword_is_found_at_any_place_in_a_schema(word: str, place: str) -> None:
    schema = PLACES[place](WORDS[word])
    for sent in (schema, json.dumps(schema)):
        found = unenforced_word(sent)
        assert found is not None
        assert (found.word, found.pointer) == (word, f"{place}/{word}")
        assert word in str(found)
        assert found.pointer in str(found)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reference", REMOTE)
def test_a_reference_to_a_missing_place_in_the_schema_is_found(reference: str, place: str) -> None:
    found = unenforced_word(PLACES[place]({"$ref": reference}))
    assert found is not None
    assert (found.word, found.pointer) == ("$ref", f"{place}/$ref")
    assert reference in str(found)


@pytest.mark.parametrize("word", [*UNENFORCED, *NEEDS_TYPE, "$ref", "if"])
@pytest.mark.parametrize("holder", ["properties", "patternProperties", "$defs", "definitions"])
def test_a_property_named_like_a_keyword_is_accepted(word: str, holder: str) -> None:
    assert unenforced_word({holder: {word: TEXT}, "required": [word]}) is None


@pytest.mark.parametrize("word", [*UNENFORCED, *NEEDS_TYPE, "$ref", "if"])
@pytest.mark.parametrize("holder", ["const", "default", "examples", "enum"])
def test_a_keyword_inside_an_instance_value_is_accepted(word: str, holder: str) -> None:
    assert unenforced_word({"properties": {"a": {holder: [{word: {"type": "x"}}]}}}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"then": {"required": ["a"]}},
        {"if": {"required": ["a"]}},
        {"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": False},
        {"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False},
        {"type": "array", "contains": TEXT, "uniqueItems": True},
        {"uniqueItems": False},
        {"const": "a", "pattern": "^a$"},
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": TEXT}},
        {"$id": "https://example.com/a", "$anchor": "a", "$comment": "not", "title": "if"},
        {"type": "object", "additionalProperties": TEXT, "propertyNames": TEXT},
        {"oneOf": [TEXT], "discriminator": {"propertyName": "kind"}},
    ],
)
def test_keywords_that_restrict_nothing_or_are_enforced_are_accepted(schema: Any) -> None:
    assert unenforced_word(schema) is None


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_schema_has_no_unenforced_keyword(name: str) -> None:
    assert unenforced_word(ORDINARY[name]) is None


@given(JSON | PATTERNS | JSON.map(json.dumps))
def test_no_schema_makes_the_search_raise(schema: Any) -> None:
    found = unenforced_word(schema)
    assert found is None or str(found)


@pytest.mark.parametrize("nothing", [{}, True])
def test_an_unsatisfiable_schema_is_rejected_with_the_alternative_for_zod(
    nothing: Any,
) -> None:
    found = unenforced_word({"properties": {"a": {"not": nothing}}})
    assert "'not': {} at /properties/a/not" in str(found)
    assert "Remove this property" in str(found)


NOT = {"type": "object", "properties": {"a": {"not": TEXT}}}


def chat(**fields: Any) -> Sent:
    return sent_to_chat(
        ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields)
    )


def message(**fields: Any) -> Sent:
    return sent_to_messages(
        ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields)
    )


def response(**fields: Any) -> Sent:
    return sent_to_responses(ResponsesRequest(input="hi", **fields))


def schema_format(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": NOT, **more}}


def tool(**more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": NOT, **more}}


def flat_tool(**more: Any) -> dict[str, Any]:
    return {"type": "function", "name": "f", "parameters": NOT, **more}


TAG = {"structures": [{"begin": "<a>", "schema": NOT, "end": "</a>"}], "triggers": ["<a"]}
TEXT_FORMAT = {"type": "json_schema", "name": "x", "schema": NOT}
REFUSED = {
    "a format": (chat(response_format=schema_format()), "response_format"),
    "a strict format": (chat(response_format=schema_format(strict=True)), "response_format"),
    "a tag": (chat(response_format={"type": "structural_tag", **TAG}), "response_format"),
    "a schema": (chat(structured_outputs={"json": NOT}), "structured_outputs.json"),
    "a schema of a response": (
        response(structured_outputs={"json": json.dumps(NOT)}),
        "structured_outputs.json",
    ),
    "a tag as a text": (
        chat(structured_outputs={"structural_tag": json.dumps(TAG)}),
        "structured_outputs.structural_tag",
    ),
    "a strict tool": (chat(tools=[tool(strict=True)]), "tools[0].function.parameters"),
    "a strict tool of a message": (message(tools=[tool(strict=True)]), "tools[0].input_schema"),
    "a format of a message": (message(response_format=schema_format()), "output_config.format"),
    "a strict tool of a response": (
        response(tools=[flat_tool(), flat_tool(strict=True)]),
        "tools[1].parameters",
    ),
    "a text format": (response(text={"format": TEXT_FORMAT}), "text.format"),
}
ACCEPTED = {
    "a tool": chat(tools=[tool()]),
    "a tool that is not strict": chat(tools=[tool(strict=False)]),
    "a forced tool that is not strict": chat(tools=[tool()], tool_choice="required"),
    "a tool of a message": message(tools=[tool()]),
    "a tool of a response": response(tools=[flat_tool(strict=False)]),
    "a format that is not strict": chat(response_format=schema_format(strict=False)),
    "a text format that is not strict": response(text={"format": {**TEXT_FORMAT, "strict": False}}),
    "nothing": chat(),
}


def serve(sent: Sent) -> None:
    """As the task of a request does."""

    def check() -> None:
        current.set(sent)
        refuse_unenforced()

    copy_context().run(check)


@pytest.mark.parametrize("name", REFUSED)
def test_the_rejection_of_a_keyword_names_its_field(name: str) -> None:
    sent, field = REFUSED[name]
    with pytest.raises(Unfit, match=r"'not' at .*/properties/a/not of the schema") as error:
        serve(sent)
    assert error.value.parameter == field


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_keyword_is_accepted_if_the_client_does_not_rely_on_it(name: str) -> None:
    serve(ACCEPTED[name])


def test_property_name_schemas_need_no_string_type() -> None:
    schema = {"type": "object", "propertyNames": {"minLength": 1, "pattern": "^a"}}
    assert unenforced_word(schema) is None
