"""Constraints on an answer: invalid ones are reported as the client's error.

vLLM checks schemas, regular expressions and grammars before it passes them to its engine. It does
not check their size, or whether any answer can match them. Sources, of vLLM 0.32:
`_validate_structured_outputs` in vllm/sampling_params.py, and vllm/v1/structured_output/.
"""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError

from deployments.engine.vllm.constraints.constraint_bounds import excess_of
from deployments.engine.vllm.constraints.constraint_fields import current, field_of
from deployments.engine.vllm.constraints.constraint_shapes import simplified
from deployments.engine.vllm.constraints.constraint_words import unenforced_word
from deployments.engine.vllm.grammars.mask_watch import SLOW_MASKS
from deployments.wire.plain_constraints import KINDS


class Unfit(VLLMValidationError):  # type: ignore[misc]  # vLLM's types are not read
    """A constraint that Antefix rejects; its message contains the value."""

    def __str__(self) -> str:
        return str(self.args[0])


def refuse_huge(sampling_params: Any) -> None:
    """Raise Unfit for a constraint that exceeds a limit of `constraint_bounds`. Simplifies a
    regular expression."""
    constraint = sampling_params.structured_outputs
    if constraint is None:
        return
    if isinstance(constraint.regex, str):  # so that the engine need not follow both repetitions
        constraint.regex = simplified(constraint.regex)
    for kind in KINDS:
        value = getattr(constraint, kind)
        excess = excess_of(kind, value)
        if excess is not None:
            raise Unfit(str(excess), parameter=field_of(kind, value), value=excess.value)


def refuse_unenforced() -> None:
    """Raise Unfit for a word in a schema of the current request that no backend enforces."""
    sent = current.get()
    for field, schema in sent.schemas() if sent is not None else ():
        if (word := unenforced_word(schema)) is not None:
            raise Unfit(str(word), parameter=field, value=word.word)


def slow_mask_ms(output: Any) -> float | None:
    """Return the milliseconds of a mask if the engine ended an answer because its masks took long;
    None: it did not."""
    for one in output.outputs:
        if str(one.stop_reason).startswith(SLOW_MASKS):
            return float(one.stop_reason.removeprefix(SLOW_MASKS))
    return None


def refuse_slow(sampling_params: Any, mask_ms: float) -> None:
    """Raise Unfit for a constraint that the engine found slow (`mask_watch.py`)."""
    constraint = sampling_params.structured_outputs
    kind = next((kind for kind in KINDS if getattr(constraint, kind) is not None), "json")
    raise Unfit(
        f"The engine repeatedly took {mask_ms:.1f} ms of CPU time per token in each sequence. It"
        " ended the answer, because all other requests had to wait. Send fewer sequences and"
        " prompts, or simplify the schema, regular expression or grammar: use fewer alternatives"
        " and repetitions, and repeat nothing that can match the same text in several ways.",
        parameter=field_of(kind, getattr(constraint, kind)),
    )


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
