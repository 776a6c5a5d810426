"""Quality that a pool's weights must prove before they are served.

The proofs are the report of `antefix evaluate` and the scores of `antefix quality import`, both
next to the weights. `prove` runs on the machine with the folder: when the fleet file is read there,
and in each engine before it loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from common.errors import Problem
from common.section import Broken, Section, refuse
from weights.evaluate import report, task_scores
from weights.model.checkpoint import weights_digest


class Quality(Section):
    """Limits. Losses are judged at the upper end of the measured 95% interval, scores at the lower
    end."""

    max_kl: float | None = Field(
        None,
        ge=0,
        description="The maximum mean KL divergence from the original model, in nats per token.",
    )
    max_ppl_increase: float | None = Field(
        None,
        ge=0,
        description="The maximum share by which the perplexity may exceed that of the original "
        "model. 0.05 means 5%.",
    )
    min_scores: Mapping[str, float] = Field(
        default_factory=dict,
        description="The minimum scores on tasks, by task and metric such as `hellaswag/acc_norm`. "
        "The lower end of a score's 95% confidence interval must reach the minimum. The proof is "
        "an lm-eval run that was imported with `antefix quality import`.",
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if not self.compares and not self.min_scores:
            raise refuse(
                "sets no limit", "Write max_kl, max_ppl_increase or min_scores, or leave it out"
            )
        return self

    @property
    def compares(self) -> bool:
        """Whether a limit compares the weights with the original's."""
        return self.max_kl is not None or self.max_ppl_increase is not None


def broken_by_quality(quality: Quality | None, model: str) -> Iterator[Broken]:
    """Check that the weights are a folder, because the report is next to them."""
    if quality is not None and (not model.startswith((".", "/")) or "://" in model):
        yield Broken(
            ("quality",),
            ...,
            "the model is not a folder, so it cannot contain a report",
            "Write the path of the model's folder, or leave `quality` out",
        )


def prove(folder: Path, quality: Quality) -> None:
    """Raise Problem unless reports next to the weights are about them and meet the limits.

    Reads at most some megabytes.
    """
    if quality.compares:
        _prove_loss(folder, quality)
    if quality.min_scores:
        _prove_scores(folder, quality.min_scores)


def _prove_loss(folder: Path, quality: Quality) -> None:
    limits = {"max-kl": quality.max_kl, "max-ppl-increase": quality.max_ppl_increase}
    flags = " ".join(f"--{name} {limit:g}" for name, limit in limits.items() if limit is not None)
    remedy = f"run antefix evaluate ORIGINAL {folder} --text FILE {flags}"
    found = report.read(folder)
    if found is None:
        raise Problem(f"the weights in {folder} have no evaluation report", remedy)
    if found.candidate.digest != weights_digest(folder):
        raise _of_others(folder, f"{report.NAME}.json", found.date, remedy)
    if broken := found.exceeded(quality.max_kl, quality.max_ppl_increase):
        raise Problem(
            f"the weights in {folder} lost too much: {'; '.join(broken)}, "
            f"by {report.NAME}.json of {found.date}",
            "serve other weights, or raise the limit",
        )


def _prove_scores(folder: Path, least: Mapping[str, float]) -> None:
    tasks = ",".join(dict.fromkeys(name.partition("/")[0] for name in least))
    remedy = f"run lm_eval --tasks {tasks}, then antefix quality import RESULTS {folder}"
    found = task_scores.read(folder)
    if found is None:
        raise Problem(f"the weights in {folder} have no scores on tasks", remedy)
    if found.digest != weights_digest(folder):
        raise _of_others(folder, task_scores.NAME, found.date, remedy)
    if low := found.too_low(least):
        raise Problem(
            f"the weights in {folder} score too low: {'; '.join(low)}, "
            f"by {task_scores.NAME} of {found.date}",
            "serve other weights, or lower the limit",
        )


def _of_others(folder: Path, file: str, date: str, remedy: str) -> Problem:
    return Problem(
        f"the weights in {folder} are not those that {file} there describes (of {date})",
        remedy,
    )
