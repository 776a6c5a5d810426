"""Whether another engine resumes the answers of this one, and whether its tokens are the same.

The other engine computes prompt and tokens so far in one prefill; this one computed the tokens one
by one, and in another batch. Kernels that add in another order for another shape round differently,
and of two nearly equally likely tokens the other may follow. VLLM_BATCH_INVARIANT is no proof:
docs/resuming.md has a GPU on which tokens differ in spite of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ResumeMode = Literal["exact", "continued", "off"]


@dataclass(frozen=True)
class Resume:
    """`mode`: exact, the same tokens are proved; continued, they are not; off, none resumes.

    `why` completes "the answers of this engine are resumed so:".
    """

    mode: ResumeMode
    why: str


@dataclass(frozen=True)
class Computing:
    """The computation of an engine. `proof` is the id of a proof for it (`continuing.proof_of`)."""

    proof: str
    on_cpu: bool
    dtype: str


def resume_of(wanted: ResumeMode | None, proof: str, engine: Computing) -> Resume:
    """Return the mode of an engine.

    `wanted` is the pool's `resume`, None: exact if that is proved, and otherwise continued. `proof`
    is its `resume_proof`, empty if there is none.
    """
    if wanted == "off":
        return Resume("off", "the pool's `resume` is off")
    proved = _proved(proof, engine)
    if wanted == "continued":
        return Resume("continued", "the pool's `resume` is continued")
    if proved is not None:
        return Resume("exact", proved)
    unproved = (
        f"nothing proves the same tokens on this engine, {engine.proof}"
        f"{f', the proof is for {proof}' if proof else ''}; antefix prove-resume tries it"
    )
    return Resume("off" if wanted == "exact" else "continued", unproved)


def _proved(proof: str, engine: Computing) -> str | None:
    """Return why another engine certainly generates the same tokens; None if it does not."""
    if proof and proof == engine.proof:
        return "the pool's `resume_proof` is for this engine"
    if engine.on_cpu and engine.dtype == "float32":
        return "float32 on a CPU is tested"
    return None
