"""Scores of a model on tasks from lm-eval, stored next to the evaluated weights.

    antefix-scores.json   a `TaskScores`

`imported` reads a results file of lm-eval 0.4 (github.com/EleutherAI/lm-evaluation-harness), which
does not say which weights answered: the operator who imports it does. A file that cannot be read is
a `Problem`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from common.errors import Problem

NAME = "antefix-scores.json"
# Standard errors from the mean to the end of its 95% interval, if it is normally distributed.
STANDARD_ERRORS = 1.96


@dataclass(frozen=True)
class TaskScore:
    """A score. `stderr`: that of the mean; `samples`: the number of questions. None: unknown."""

    value: float
    stderr: float | None
    higher_is_better: bool
    samples: int | None

    @property
    def low(self) -> float:
        """The lower end of the 95% interval; the value itself without a known error."""
        return self.value - STANDARD_ERRORS * (self.stderr or 0.0)


@dataclass(frozen=True)
class TaskScores:
    """The scores of one model. `digest`: of its weights (`checkpoint`). `model`: its name
    in requests. `scores`: by task and metric, such as `hellaswag/acc_norm`."""

    date: str
    harness: str
    model: str
    digest: str
    scores: Mapping[str, TaskScore]

    def too_low(self, least: Mapping[str, float]) -> list[str]:
        """Return the scores below their minimum as text; empty if there are none."""
        return [words for name, limit in least.items() if (words := self._complaint(name, limit))]

    def _complaint(self, name: str, limit: float) -> str:
        score = self.scores.get(name)
        if score is None:
            return f"no score for {name}, only for {', '.join(self.scores)}"
        if not score.higher_is_better:
            return f"lower is better for {name}, so it has no minimum score"
        if score.low >= limit:
            return ""
        return (
            f"{name} may be as low as {score.low:.4g} (measured {score.value:.4g}), but {limit:g} "
            "is required"
        )

    def with_older(self, older: TaskScores | None) -> TaskScores:
        """Return the scores with those of an earlier run on other tasks with the same weights."""
        if older is None or older.digest != self.digest:
            return self
        return replace(self, scores={**older.scores, **self.scores})


_ADAPTER = TypeAdapter(TaskScores)


def imported(text: str, digest: str) -> TaskScores:
    """Return the scores in a results file of lm-eval. Raises Problem if it is not one."""
    try:
        found = json.loads(text)
        scores = dict(_scores(found))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Problem(
            f"it is not a results file of lm-eval ({type(error).__name__}: {error})",
            "pass the results_*.json that lm_eval wrote below --output_path",
        ) from error
    if not scores:
        raise Problem("it has no score", "run lm_eval with at least one of --tasks")
    return TaskScores(
        date=time.strftime("%Y-%m-%d", time.gmtime(float(found.get("date") or time.time()))),
        harness=f"lm_eval {found.get('lm_eval_version') or 'of an unknown version'}",
        model=str(found.get("model_name") or ""),
        digest=digest,
        scores=scores,
    )


def _scores(found: Mapping[str, Any]) -> Iterator[tuple[str, TaskScore]]:
    for task, figures in found["results"].items():
        better = found.get("higher_is_better", {}).get(task, {})
        samples = found.get("n-samples", {}).get(task, {}).get("effective")
        for key, value in figures.items():
            # a metric and the filter of answers: acc,none
            metric, comma, answers = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = figures.get(f"{metric}_stderr,{answers}")
            yield (
                f"{task}/{metric}" if answers == "none" else f"{task}/{key}",
                TaskScore(
                    float(value),
                    float(stderr) if isinstance(stderr, int | float) else None,
                    bool(better.get(metric, True)),
                    samples,
                ),
            )


def read(folder: Path) -> TaskScores | None:
    """Return the scores in a model's folder; None if it has none."""
    file = folder / NAME
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise Problem(
            f"{file} cannot be read as scores: {str(error).splitlines()[0]}",
            "remove it, and import the results again: antefix quality import",
        ) from error


def write(folder: Path, scores: TaskScores) -> None:
    """Write the scores, completely or not at all. Raises OSError."""
    file = folder / NAME
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_bytes(_ADAPTER.dump_json(scores, indent=1) + b"\n")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
