"""`antefix tune-speculation`: find the speculative decoding that pays under the user's prompts and
load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common.exit_codes import ExitCode
from cli.common.named_pool import named_pool
from cli.common.options import FleetFile, Output, PoolName
from cli.common.output import CommandError, answering, is_data, note, print_data
from cli.common.progress import Steps
from common.errors import Problem
from weights.speculation.draft_yield import MOST_ROUNDS, Recommendation, recommend

if TYPE_CHECKING:
    from deployments.fleet.pool import Pool
    from deployments.offline.speculation_sweep import MeasuredArm, Sweep, Trial, Way


def tune_speculation(
    fleet: FleetFile,
    prompts: Annotated[
        Path, typer.Option(help="Prompts: one per line, or .jsonl with messages or turns.")
    ],
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent requests.")],
    pool: PoolName = None,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="Maximum length of an answer, in tokens.")
    ] = 128,
    draft_lengths: Annotated[
        str, typer.Option(help="Draft lengths to try, in tokens.")
    ] = "1,2,3,5,8",
    method: Annotated[
        str | None,
        typer.Option(
            help="ngram, ngram_gpu, suffix or draft_model; default: the pool's"
            " speculative_config, or ngram and suffix."
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="Draft model for --method draft_model: a Hugging Face id or a path."),
    ] = None,
    draft_layers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Build the draft model from this number of the model's first layers."
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=2,
            max=MOST_ROUNDS,
            help="Rounds of measurement. More rounds give narrower intervals.",
        ),
    ] = 3,
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="Load one engine at a time, which needs less memory."),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Load a separate engine for each draft length, with its own CUDA graphs.",
        ),
    ] = False,
    output: Output = "table",
) -> None:
    """Measure methods of speculative decoding and draft lengths; recommend the best, or none."""
    with answering(output):
        from cli.local.home import home_folder
        from deployments.fleet.fleet_file import load_fleet
        from deployments.offline import speculation_ways as ways
        from deployments.offline.speculation_sweep import Trial
        from weights.evaluate.prompts import read_prompts

        asked = ways.Draft(draft, draft_layers)
        lengths = ways.lengths_of(draft_lengths)
        name, of_fleet = named_pool(load_fleet(fleet).pools, pool)
        own = ways.own_config(of_fleet)
        methods = ways.methods_of(method, own is not None, asked)
        conversations = read_prompts(prompts)
        if len(conversations) < concurrency:
            raise CommandError(
                f"{prompts} has {len(conversations)} prompts, fewer than --concurrency"
                f" {concurrency}",
                "add prompts, or lower --concurrency",
                ExitCode.USAGE,
            )
        model = _model(of_fleet)
        tried, left_out = ways.ways_of(own, methods, lengths, ways.draft_of(asked, model, of_fleet))
        for words in left_out:
            note(words)
        if not tried:
            raise Problem("no speculation method is left to try", "choose another --method")
        trial = Trial(
            model=model,
            engine_args=ways.engine_args_without(of_fleet, concurrency, sequential),
            env=of_fleet.env,
            prompts=conversations,
            max_tokens=max_tokens,
            rounds=rounds,
            apart=sequential,
            exact=exact,
            logs=home_folder() / "logs" / "tune-speculation",
        )
        found, confirmed, advice = _run(trial, tried)
        if is_data(output):
            print_data(_json(trial, name, concurrency, found, confirmed, advice, left_out), output)
        else:
            _print(trial, name, concurrency, found, confirmed, advice)


def _model(pool: Pool) -> str:
    from deployments.models.model import resolve_model

    with Steps() as steps, steps.step("model") as step:
        return resolve_model(pool.model, step.show)


def _run(trial: Trial, tried: list[Way]) -> tuple[Sweep, MeasuredArm | None, Recommendation]:
    """Return the measurements, a second measurement of the winner, and the recommendation."""
    from deployments.offline.speculation_sweep import confirm, sweep

    with Steps() as steps:
        with steps.step("measuring") as step:
            found = sweep(trial, tried, lambda words: step.show(None, words))
        if not found.measured:
            reasons = "; ".join(f"{way}: {reason}" for way, reason in found.failed.items())
            raise Problem(f"nothing could be measured: {reasons}", f"see {trial.logs}")
        advice = recommend([one.candidate for one in found.measured])
        if advice.best is None:
            return found, None, advice
        won = next(one for one in found.measured if one.candidate == advice.best)
        with steps.step("confirming") as step:
            confirmed = confirm(trial, won, lambda words: step.show(None, words))
    return found, confirmed, recommend([confirmed.candidate])


def _lines(pool: str, won: MeasuredArm) -> str:
    """Return the lines for the fleet file."""
    import yaml

    args = {"engine_args": {"speculative_config": dict(won.config)}}
    return yaml.safe_dump({"pools": {pool: args}}, sort_keys=False)


def _print(
    trial: Trial,
    pool: str,
    concurrency: int,
    found: Sweep,
    confirmed: MeasuredArm | None,
    advice: Recommendation,
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{pool}: {len(trial.prompts)} prompts, {concurrency} at once, {trial.rounds} rounds",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("speculation")
    for column in (
        *("tokens/s", "ms per token", "accepted", "tokens per pass", "per draft", "expected"),
        *("equal", "speedup", "95%"),
    ):
        table.add_column(column, justify="right")
    for row in _rows(found, confirmed):
        table.add_row(*row)
    Console(highlight=False).print(table)
    for way, reason in found.failed.items():
        note(f"{way} could not be measured: {reason}")
    if trial.apart:
        note("the engines were measured one after the other: speedups include drift")
    if confirmed is not None and advice.best is None:
        note(f"the winner of the first round did not win again: {advice.reason}")
    elif advice.best is None or confirmed is None:
        note(advice.reason)
    else:
        note(f"{advice.reason}; for the fleet file:")
        typer.echo(_lines(pool, confirmed), nl=False)
        return
    typer.echo("recommended: none")


def _rows(found: Sweep, confirmed: MeasuredArm | None) -> Iterator[tuple[str, ...]]:
    from deployments.offline.speculation_sweep import rate

    seconds = sum(run.tpot_s for run in found.without) / len(found.without)
    tokens = sum(map(rate, found.without)) / len(found.without)
    yield "none", f"{tokens:.1f}", f"{seconds * 1000:.1f}", "", "", "", "", "", "1.00", ""
    for one in found.measured:
        yield _row(one.name, one)
    if confirmed is not None:
        yield _row("confirmed: " + confirmed.name, confirmed)


def _row(name: str, one: MeasuredArm) -> tuple[str, ...]:
    speedup = one.candidate.speedup
    return (
        name,
        f"{one.tokens_per_s:.1f}",
        f"{one.tpot_s * 1000:.1f}",
        _shown(one.acceptance_rate, ".0%"),
        f"{one.tokens_per_pass:.2f}",
        _shown(one.tokens_per_draft, ".2f"),
        _shown(one.expected_per_draft, ".2f"),
        f"{one.equal_answers:.0%}",
        f"{speedup.mean:.2f}",
        f"{speedup.low:.2f} - {speedup.high:.2f}",
    )


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _json(
    trial: Trial,
    pool: str,
    concurrency: int,
    found: Sweep,
    confirmed: MeasuredArm | None,
    advice: Recommendation,
    left_out: list[str],
) -> dict[str, Any]:
    from deployments.offline.speculation_sweep import rate

    won = confirmed if advice.best is not None else None
    return {
        "pool": pool,
        "prompts": len(trial.prompts),
        "concurrency": concurrency,
        "max_tokens": trial.max_tokens,
        "rounds": trial.rounds,
        "side_by_side": not trial.apart,
        "none": {"tokens_per_s": [rate(run) for run in found.without]},
        "measured": [_as_json(one) for one in found.measured],
        "confirmed": None if confirmed is None else _as_json(confirmed),
        "failed": dict(found.failed),
        "left_out": left_out,
        "recommended": None if won is None else dict(won.config),
        "reason": advice.reason,
    }


def _as_json(one: MeasuredArm) -> dict[str, Any]:
    return {
        "name": one.name,
        "speculative_config": dict(one.config),
        "drafted": one.drafted,
        "tokens_per_s": one.tokens_per_s,
        "tpot_s": one.tpot_s,
        "acceptance_rate": one.acceptance_rate,
        "tokens_per_pass": one.tokens_per_pass,
        "tokens_per_draft": one.tokens_per_draft,
        "expected_per_draft": one.expected_per_draft,
        "equal_answers": one.equal_answers,
        "speedup": vars(one.candidate.speedup),
    }
