"""Constraints on an answer: invalid ones are reported as the client's error.

vLLM checks schemas, regular expressions and grammars before it passes them to its engine. It does
not check their size, or whether any answer can match them. Sources, of vLLM 0.32:
`_validate_structured_outputs` in vllm/sampling_params.py, and vllm/v1/structured_output/.
"""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError

from deployments.engine.vllm.constraint_bounds import excess_of
from deployments.engine.vllm.constraint_fields import field_of
from deployments.wire.plain_constraints import KINDS


class Unfit(VLLMValidationError):  # type: ignore[misc]  # vLLM's types are not read
    """A constraint that Antefix rejects; its message contains the value."""

    def __str__(self) -> str:
        return str(self.args[0])


def refuse_huge(sampling_params: Any) -> None:
    """Raise Unfit for a constraint that exceeds a limit of `constraint_bounds`."""
    constraint = sampling_params.structured_outputs
    if constraint is None:
        return
    for kind in KINDS:
        value = getattr(constraint, kind)
        excess = excess_of(kind, value)
        if excess is not None:
            raise Unfit(str(excess), parameter=field_of(kind, value), value=excess.value)


def refuse_unmet(sampling_params: Any, output: Any) -> None:
    """Raise VLLMValidationError for an answer that ended because no token matched its constraint.

    vLLM reports only a failure. It also fails a request whose KV blocks could not be loaded through
    a KV connector, which gets the same error here.
    """
    if sampling_params.structured_outputs is None:
        return
    if any(one.finish_reason == "error" for one in output.outputs):
        raise VLLMValidationError(
            "The engine cannot generate an answer that matches the schema, regular expression or"
            " grammar of this request: it contradicts or refers to itself, or is too complex."
            " Correct or simplify it."
        )
