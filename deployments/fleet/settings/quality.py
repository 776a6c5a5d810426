"""What a pool's weights have to prove before they are served.

The proof is the report that `antefix evaluate` writes beside them. `prove` is asked where the
folder is: by whoever reads the fleet file there, and by each engine before it loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from common.errors import Problem
from common.section import Broken, Section, refuse
from weights import report
from weights.checkpoint import weights_digest


class Quality(Section):
    """At the upper end of the 95 % interval that was measured."""

    max_kl: float | None = Field(
        None,
        ge=0,
        description="The mean KL divergence from the original model may be at most this, in nats "
        "per token. With null there is no limit.",
    )
    max_ppl_increase: float | None = Field(
        None,
        ge=0,
        description="The perplexity may exceed the original model's by at most this share, where "
        "0.05 is 5 %. With null there is no limit.",
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.max_kl is None and self.max_ppl_increase is None:
            raise refuse(
                "names no limit", "Write max_kl, max_ppl_increase or both, or leave it out"
            )
        return self


def broken_by_quality(quality: Quality | None, model: str) -> Iterator[Broken]:
    """A report stands beside weights, so these have to be files."""
    if quality is not None and (not model.startswith((".", "/")) or "://" in model):
        yield Broken(
            ("quality",),
            ...,
            "the model is not a folder, so no report can stand beside it",
            "Write the path of the model's folder, or leave `quality` out",
        )


def prove(folder: Path, quality: Quality) -> None:
    """Raises Problem unless a report beside the weights keeps the limits, and is of them.

    Reads some megabytes at most.
    """
    limits = {"max-kl": quality.max_kl, "max-ppl-increase": quality.max_ppl_increase}
    flags = " ".join(f"--{name} {limit:g}" for name, limit in limits.items() if limit is not None)
    remedy = f"run antefix evaluate ORIGINAL {folder} --text FILE {flags}"
    found = report.read(folder)
    if found is None:
        raise Problem(f"the weights in {folder} have no evaluation report", remedy)
    if found.candidate.digest != weights_digest(folder):
        raise Problem(
            f"the weights in {folder} are not those that {report.NAME}.json beside them judges "
            f"(it is of {found.date})",
            remedy,
        )
    if broken := found.exceeded(quality.max_kl, quality.max_ppl_increase):
        raise Problem(
            f"the weights in {folder} lost too much: {'; '.join(broken)}, "
            f"by {report.NAME}.json of {found.date}",
            "serve others, or raise the limit",
        )
