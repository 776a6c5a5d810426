"""What an answer is asked to keep to: refused as the client's mistake where it is one.

vLLM checks schemas, regular expressions and grammars before it hands them to its engine, but not
how large they get, and not whether any answer keeps to them. Sources, of vLLM 0.32:
`_validate_structured_outputs` in vllm/sampling_params.py, and vllm/v1/structured_output/.
"""

from __future__ import annotations

import json
from typing import Any

from vllm.exceptions import VLLMValidationError

# llguidance, which vLLM turns to where xgrammar refuses, writes each of an array's items out:
# with 10^9 of them the replica's process ran out of memory and died, with 10^6 it stood for 13 s.
MOST_ITEMS = 10_000
_COUNTS = ("minItems", "maxItems")
# what holds an instance, and no schema
_DATA = {"const", "enum", "default", "examples"}


def refuse_huge(sampling_params: Any) -> None:
    """Raises VLLMValidationError for arrays that are too long to be written out."""
    constraint = sampling_params.structured_outputs
    if constraint is None:
        return
    for schema in (constraint.json, constraint.structural_tag):
        _refuse_huge_arrays(schema)


def refuse_unmet(sampling_params: Any, output: Any) -> None:
    """Raises VLLMValidationError for an answer that ended because no token kept to its constraint.

    vLLM tells only that it failed. It also fails a request whose KV blocks it could not load from
    elsewhere, where a KV connector is configured; that is told as this one.
    """
    if sampling_params.structured_outputs is None:
        return
    if any(one.finish_reason == "error" for one in output.outputs):
        raise VLLMValidationError(
            "The engine cannot make an answer that keeps to the schema, regular expression or"
            " grammar of this request: it contradicts or refers to itself, or is too complex."
            " Correct or simplify it."
        )


def _refuse_huge_arrays(schema: Any) -> None:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return  # vLLM says what is wrong
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            for name in _COUNTS:
                count = part.get(name)
                if isinstance(count, int | float) and count > MOST_ITEMS:
                    raise VLLMValidationError(
                        f"{name!r} of an array in the schema is {count}, and at most {MOST_ITEMS}"
                        " is allowed. Send less, or leave it out."
                    )
            left += [inner for name, inner in part.items() if name not in _DATA]
