"""Words of JSON Schema that no backend enforces: an answer may violate them without an error.

A request that relies on one is refused. Words that restrict nothing, such as annotations, and those
that a backend enforces or refuses itself, are left to it. `UNENFORCED` was found by giving each
backend of vLLM 0.32 an answer that violates the word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.engine.vllm.constraints.constraint_parts import DATA
from deployments.wire.plain_constraints import NAMED

UNENFORCED = (
    *("not", "then", "else", "dependentSchemas", "dependentRequired", "dependencies"),
    *("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"),
)
# xgrammar enforces these only in a schema with a type.
NEEDS_TYPE: Mapping[str, str] = {
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
    **dict.fromkeys(("minItems", "maxItems", "uniqueItems", "contains"), "array"),
    **dict.fromkeys(("minProperties", "maxProperties", "propertyNames"), "object"),
    "multipleOf": "number",
}
# They decide a schema's type, or are enforced instead.
_TYPED = ("type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf", "properties", "items")
# With these values, a word restricts nothing.
_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "then": (True, {}),
    "else": (True, {}),
    "not": (False,),
    "dependentSchemas": ({},),
    "dependentRequired": ({},),
    "dependencies": ({},),
    "uniqueItems": (False,),
}


@dataclass(frozen=True)
class UnenforcedWord:
    """A word of a schema; `pointer` leads to it from the schema (RFC 6901)."""

    word: str
    pointer: str
    value: Any

    def __str__(self) -> str:
        if self.word == "$ref":
            return (
                f"The engine cannot follow '$ref' at {self.pointer} of the schema, whose value is"
                f" {str(self.value)[:200]!r}. Refer to a definition of this schema, such as"
                " '#/$defs/name'."
            )
        if self.word in NEEDS_TYPE:
            return (
                f"The engine does not enforce {self.word!r} at {self.pointer} of the schema"
                f" without a 'type'. Add 'type': {NEEDS_TYPE[self.word]!r} to the same object."
            )
        if self.word == "not" and self.value in ({}, True):
            return (
                f"The engine does not enforce 'not': {{}} at {self.pointer} of the schema, which no"
                " value satisfies: an answer could have one. Remove this property, as zod's"
                " z.never() and z.undefined(), and set 'additionalProperties': false."
            )
        return (
            f"The engine does not enforce {self.word!r} at {self.pointer} of the schema: an answer"
            " could violate it. Remove it, and describe the rule in the prompt."
        )


def unenforced_word(schema: Any) -> UnenforcedWord | None:
    """Return a word of a schema or structural tag that is not enforced; None: there is none.

    A text is read as JSON. Never raises.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return None  # vLLM refuses it
    return next(_words(schema), None)


def _words(document: Any) -> Iterator[UnenforcedWord]:
    left: list[tuple[Any, str]] = [(document, "")]
    while left:
        schema, at = left.pop()
        if isinstance(schema, list):
            left += [(one, f"{at}/{index}") for index, one in enumerate(schema)]
        elif isinstance(schema, Mapping):
            for name, value in schema.items():
                pointer = f"{at}/{_escaped(name)}"
                if _is_unenforced(schema, name, value):
                    yield UnenforcedWord(name, pointer, value)
                if name in NAMED and isinstance(value, Mapping):
                    left += [(one, f"{pointer}/{_escaped(key)}") for key, one in value.items()]
                elif name == "propertyNames" and isinstance(value, Mapping):
                    left.append(({"type": "string", **value}, pointer))  # names are strings
                elif name not in DATA:
                    left.append((value, pointer))


def _is_unenforced(schema: Mapping[str, Any], name: Any, value: Any) -> bool:
    if name == "$ref":
        return isinstance(value, str) and not _is_local(value)
    if value in _HARMLESS.get(name, ()):
        return False
    if name in NEEDS_TYPE:
        return not any(typed in schema for typed in _TYPED)
    return name in UNENFORCED and (name not in ("then", "else") or "if" in schema)


def _is_local(reference: str) -> bool:
    """Return whether a reference is to this schema, or to a place in it by a JSON pointer."""
    return reference in ("", "#") or reference.startswith("#/")


def _escaped(name: Any) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")
