"""`antefix evaluate`: the quality of a model compared with the model it was made from."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from cli.common.exit_codes import ExitCode
from cli.common.named_model import check_model
from cli.common.options import MaxTokens, Output
from cli.common.output import CommandError, answering, is_data, note, print_data
from cli.common.progress import ProgressStep, Steps
from cli.local.home import home_folder
from common.errors import Problem
from common.machine import has_cpu_build
from deployments.models.model import EMBEDDED, resolve_model
from weights.evaluate.report import Evaluation, write

if TYPE_CHECKING:
    from deployments.offline.evaluation import EvaluationTask

# Two engines on one GPU, with room for other memory.
GPU_SHARE = 0.45


def evaluate(
    reference: Annotated[str, typer.Argument(help="Reference model, A in the report.")],
    candidate: Annotated[str, typer.Argument(help="Candidate model, B in the report.")],
    text: Annotated[
        Path | None,
        typer.Option(help="Text to score, plain or .jsonl; default: A's answers to --prompts."),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts to answer: .jsonl, or one per line.")
    ] = None,
    window: Annotated[
        int, typer.Option(min=16, help="Length of a scored window, in tokens.")
    ] = 512,
    windows: Annotated[int, typer.Option(min=1, help="Maximum number of windows.")] = 64,
    max_tokens: MaxTokens = 64,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Concurrent requests while the speed is measured.")
    ] = 8,
    rounds: Annotated[
        int, typer.Option(min=0, help="Rounds of speed measurement; 0 skips it.")
    ] = 5,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="vLLM argument for both models; repeatable."),
    ] = None,
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="Load one model at a time, which needs less memory."),
    ] = False,
    max_kl: Annotated[
        float | None,
        typer.Option(
            min=0, help="Limit for the mean KL divergence, in nats per token; default: none."
        ),
    ] = None,
    max_ppl_increase: Annotated[
        float | None,
        typer.Option(
            min=0, help="Limit for the increase of the perplexity; 0.05 is 5%. Default: none."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the report; default: that of B's weights."),
    ] = None,
    output: Output = "table",
) -> None:
    """Compare the quality, size and speed of two models; store a report.

    With --max-kl or --max-ppl-increase, the command exits with 7 if the upper end of the 95%
    interval exceeds the limit.
    """
    with answering(output):
        for model in (reference, candidate):
            check_model(model)
        asked = _asked(
            text, prompts, window, windows, max_tokens, concurrency, rounds, not sequential
        )
        arguments = _engine_args(engine_arg or [], asked.together)
        a, b = (_resolved(model) for model in (reference, candidate))
        folder = _writable(output_dir or _beside(candidate, b))
        found = _evaluated((a, b), asked, arguments)
        found = replace(
            found,
            reference=replace(found.reference, model=reference),
            candidate=replace(found.candidate, model=candidate),
            max_kl=max_kl,
            max_ppl_increase=max_ppl_increase,
        )
        _answer(found, folder, output)


def _asked(
    text: Path | None,
    prompts: Path | None,
    window: int,
    windows: int,
    max_tokens: int,
    concurrency: int,
    rounds: int,
    together: bool,
) -> EvaluationTask:
    from deployments.offline.evaluation import EvaluationTask
    from weights.evaluate.prompts import read_prompts, read_texts

    if text is None and prompts is None:
        raise CommandError(
            "no text and no prompts were given",
            "pass a text to score (--text), prompts to answer (--prompts), or both",
            ExitCode.USAGE,
        )
    return EvaluationTask(
        texts=read_texts(text) if text else [],
        text=text.name if text else f"A's own greedy answers to {prompts and prompts.name}",
        prompts=read_prompts(prompts) if prompts else [],
        window=window,
        most_windows=windows,
        max_tokens=max_tokens,
        concurrency=concurrency,
        rounds=rounds,
        together=together,
    )


def _engine_args(given: list[str], together: bool) -> dict[str, Any]:
    """Return the arguments as in a fleet file: each VALUE is parsed as YAML."""
    arguments: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise CommandError(
                f"--engine-arg {each!r} is not KEY=VALUE",
                "for example, dtype=float32",
                ExitCode.USAGE,
            )
        try:
            arguments[key.lstrip("-").replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise CommandError(
                f"--engine-arg {each!r} has no usable value", "quote it", ExitCode.USAGE
            ) from error
    # the context fills the KV cache
    arguments.setdefault("max_model_len", "auto")
    if together and not has_cpu_build():
        arguments.setdefault("gpu_memory_utilization", GPU_SHARE)
    return arguments


def _resolved(model: str) -> str:
    return resolve_model(model, lambda fraction, what: note(f"model: {what}"))


def _beside(candidate: str, resolved: str) -> Path:
    """Return the folder of B's weights if the user can write there, otherwise the current
    folder."""
    folder = Path(resolved)
    if candidate != EMBEDDED and folder.is_dir() and os.access(folder, os.W_OK):
        return folder
    note(f"{candidate} is not a writable folder: the report goes into the current folder")
    return Path.cwd()


def _writable(folder: Path) -> Path:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Problem(
            f"the report cannot be written into {folder}", "choose another folder with --output-dir"
        )
    return folder


def _evaluated(
    models: tuple[str, str], asked: EvaluationTask, arguments: dict[str, Any]
) -> Evaluation:
    from deployments.offline.evaluation import evaluate as compare
    from deployments.offline.offline_engine import OfflineEngine

    # as `env` in a fleet file; variables that are set already win
    env = {
        name: os.environ.get(name, value)
        for name, value in (
            ("VLLM_CPU_KVCACHE_SPACE", "1"),
            ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        )
    }
    logs = iter(home_folder() / "logs" / f"evaluate-{name}.log" for name in "ab")
    with Steps() as steps:
        opened: dict[str, ProgressStep] = {}

        def show(title: str, fraction: float | None, detail: str) -> None:
            if title not in opened:
                end()
                opened[title] = steps.open(title)
            opened[title].show(fraction, detail)

        def end() -> None:
            for step in list(opened.values())[-1:]:
                step.done()

        def start(model: str) -> OfflineEngine:
            return OfflineEngine.start(model, arguments, next(logs), env)

        found = compare(*models, asked, start, arguments, show)
        end()
        return found


def _answer(found: Evaluation, folder: Path, output: str) -> None:
    from weights.evaluate.report_page import markdown, plot, text

    try:
        write(folder, {"json": found.to_json(), "md": markdown(found), "svg": plot(found)})
    except OSError as error:
        raise Problem(
            f"the report cannot be written into {folder}: {error.strerror or error}",
            "choose another folder with --output-dir",
        ) from error
    broken = found.exceeded(found.max_kl, found.max_ppl_increase)
    if is_data(output):
        print_data(
            {**json.loads(found.to_json()), "report": str(folder), "exceeded": broken}, output
        )
        if broken:
            raise typer.Exit(ExitCode.GATE)
        return
    typer.echo(text(found))
    note(f"the report is in {folder}")
    if broken:
        raise CommandError(
            f"{found.candidate.model} lost more quality than the limits allow: {'; '.join(broken)}",
            "quantize less (more bits, smaller groups, calibration text), or raise the limits",
            ExitCode.GATE,
        )
