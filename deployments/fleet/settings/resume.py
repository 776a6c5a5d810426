"""Settings for answers whose engine is lost or leaves: `resume` of a pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from common.section import Broken

_MODES = ("exact", "continued", "off")


def _off(value: Any) -> Any:
    """YAML 1.1 reads `off` as false."""
    return "off" if value is False else value


ResumeMode = Annotated[
    Literal["exact", "continued", "off"],
    BeforeValidator(_off),
    WithJsonSchema({"type": ["string", "boolean"], "enum": [*_MODES, False]}),
]
RESUME = Field(
    None,
    description="Whether another engine resumes the answers of an engine that is lost or removed. "
    "With `exact`, answers are resumed only if the tokens are proved to be the same: on CPUs that "
    "compute in float32, or with a `resume_proof`. With `continued`, they are resumed without that "
    "proof. Later tokens may then differ as in any rerun, and the answer is labeled. With `off`, "
    "they are never resumed. If null, the value is `exact` where that is proved, and otherwise "
    "`continued`.",
)
RESUME_PROOF = Field(
    "",
    pattern=r"^([0-9a-f]{16})?$",
    description="The proof that `antefix prove-resume` prints for the engines that it has tested. "
    "It is valid only for the same model, engine arguments, vLLM version, model runner, GPU model "
    "and VLLM_BATCH_INVARIANT.",
)


def broken_by_resume(pool: Any) -> Iterator[Broken]:
    """Check that `exact` on GPUs has a proof."""
    if pool.resume_proof and pool.resume not in ("exact", None):
        yield Broken(
            ("resume_proof",),
            pool.resume_proof,
            f"resume: {pool.resume} does not use a proof",
            "Write resume: exact, or leave out resume_proof",
        )
    on_gpus = bool(pool.resources.gpus or pool.resources.accelerator_type)
    if pool.resume == "exact" and on_gpus and not pool.resume_proof:
        yield Broken(
            ("resume",),
            "exact",
            "nothing proves that another engine on GPUs makes the same tokens",
            "Run antefix prove-resume on such a GPU and write the resume_proof that it prints, or "
            "write resume: continued",
        )
