"""`antefix quality`: store the scores that a pool's `quality` requires next to its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter

from cli.common.command_line import CommandLine
from cli.common.options import Output
from cli.common.output import answering, is_data, note, print_data
from common.errors import Problem
from weights.evaluate import task_scores
from weights.model.checkpoint import weights_digest

quality = CommandLine(
    help="Store lm-eval scores next to the weights, where `quality` of a fleet file reads them."
)


@quality.command("import")
def import_results(
    results: Annotated[Path, typer.Argument(help="File results_*.json that lm_eval wrote.")],
    folder: Annotated[Path, typer.Argument(help="Folder of the evaluated weights.")],
    output: Output = "table",
) -> None:
    """Store the scores of an lm-eval run next to the evaluated weights."""
    with answering(output):
        digest = weights_digest(folder)
        try:
            found = task_scores.imported(results.read_text(encoding="utf-8"), digest)
        except (OSError, UnicodeDecodeError) as error:
            raise Problem(f"{results} cannot be read: {error}", "name another file") from error
        except Problem as problem:
            raise Problem(f"{results}: {problem.message}", problem.remedy) from None
        scores = found.with_older(task_scores.read(folder))
        try:
            task_scores.write(folder, scores)
        except OSError as error:
            raise Problem(
                f"{folder / task_scores.NAME} cannot be written: {error.strerror}",
                "run it as a user who may write there",
            ) from error
        if is_data(output):
            print_data(TypeAdapter(task_scores.TaskScores).dump_python(scores, mode="json"), output)
            return
        for name, score in found.scores.items():
            typer.echo(f"{name}: {score.value:.4g}, at least {score.low:.4g}")
        note(f"written to {folder / task_scores.NAME}; quality.min_scores of a pool requires it")
