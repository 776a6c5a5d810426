"""The result of an evaluation, and its files next to the evaluated weights.

    antefix-evaluation.json   all of it, an `Evaluation`
    antefix-evaluation.md     for people
    antefix-evaluation.svg    its plot

Divergences are in nats, rates in tokens per second, sizes in bytes. A file that cannot be read
as an evaluation is a `Problem`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from common.errors import Problem
from weights.evaluate.estimate import Estimate

NAME = "antefix-evaluation"


@dataclass(frozen=True)
class Side:
    """One of the two models. `digest` and `weight_bytes` are those of its safetensors files, None
    without them.

    Rates are means over the rounds, None if none were measured.
    """

    model: str
    digest: str | None
    weight_bytes: int | None
    dtype: str
    load_s: float
    perplexity: Estimate
    prefill_rate: float | None
    decode_rate: float | None
    concurrent_decode_rate: float | None


@dataclass(frozen=True)
class Answers:
    """Greedy answers to the same prompts: the share of equal ones, and the common share at the
    start, of the longer answer.
    """

    prompts: int
    max_tokens: int
    equal: Estimate
    common_prefix: Estimate


@dataclass(frozen=True)
class Rates:
    """The candidate's rate over the reference's. `concurrency` is that of the last."""

    rounds: int
    concurrency: int
    prefill: Estimate
    decode: Estimate
    concurrent_decode: Estimate


@dataclass(frozen=True)
class Distribution:
    """Data for the plot.

    `kl_by_position`: mean divergence of the tokens up to each position, in equal steps from 0;
    `differences`: the share of tokens in each bin of candidate minus reference log-probability,
    between `edges`.
    """

    kl_percentiles: Mapping[str, float]
    positions: list[int]
    kl_by_position: list[float]
    edges: list[float]
    differences: list[float]


@dataclass(frozen=True)
class Evaluation:
    """A candidate against its reference. `text` describes the material; `together` whether both
    were loaded at once and measured in turns.

    Limits are None if they were not set.
    """

    date: str
    versions: Mapping[str, str]
    engine_args: Mapping[str, str | int | float | bool]
    text: str
    windows: int
    tokens: int
    together: bool
    reference: Side
    candidate: Side
    perplexity_ratio: Estimate
    kl: Estimate
    top_1_agreement: Estimate
    answers: Answers | None
    rates: Rates | None
    distribution: Distribution
    max_kl: float | None = None
    max_ppl_increase: float | None = None

    def exceeded(self, max_kl: float | None, max_ppl_increase: float | None) -> list[str]:
        """Return the exceeded limits as text; empty if there are none.

        The upper end of the 95% interval is judged: a possible excess fails, and more text makes
        the interval narrower. An increase of 0.05 is 5%.
        """
        increase = self.perplexity_ratio.high - 1
        found = []
        if max_kl is not None and not self.kl.high <= max_kl:
            found.append(
                f"mean KL is up to {self.kl.high:.4g} nats a token (measured {self.kl.value:.4g}), "
                f"but at most {max_kl:g} is allowed"
            )
        if max_ppl_increase is not None and not increase <= max_ppl_increase:
            found.append(
                f"perplexity is up to {increase:.2%} higher (measured "
                f"{self.perplexity_ratio.value - 1:.2%}), but at most {max_ppl_increase:.2%} is "
                "allowed"
            )
        return found

    def to_json(self) -> str:
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"


_ADAPTER = TypeAdapter(Evaluation)


def read(folder: Path) -> Evaluation | None:
    """Return the evaluation in a model's folder; None if it has none."""
    file = folder / f"{NAME}.json"
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise Problem(
            f"{file} cannot be read as an evaluation: {str(error).splitlines()[0]}",
            "evaluate again: antefix evaluate",
        ) from error


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files of `NAME`, by suffix: each complete or not at all. Raises OSError."""
    for suffix, content in files.items():
        file = folder / f"{NAME}.{suffix}"
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            partial.write_text(content, encoding="utf-8")
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
