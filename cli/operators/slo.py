"""`antefix slo`: check an SLO file, and generate rules, alerts, runbooks and dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.common.command_line import CommandLine
from cli.common.exit_codes import ExitCode
from cli.common.options import Output, OutputDir
from cli.common.output import CommandError, answering, is_data, print_data
from common.errors import Problem

slo = CommandLine(help="Check SLO files; write rules, alerts, runbooks and dashboards.")

SloPath = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="SLO file; default: the built-in one.")
]


@slo.command()
def check(file: SloPath = None, output: Output = "table") -> None:
    """Check an SLO file, and its queries if promtool is installed."""
    with answering(output):
        from observability.alerts import runbooks
        from observability.alerts.promtool import complaints
        from observability.alerts.rules import render as rules
        from observability.alerts.slo_file import SHIPPED, load

        loaded = load(file)
        runbooks.load(loaded, file)
        said = complaints(rules(loaded))
        if said:
            raise CommandError(
                f"{file or SHIPPED}: {said}", "correct the query", ExitCode.INVALID_FILE
            )
        if is_data(output):
            print_data(
                {
                    "slos": [of.name for of in loaded.slos],
                    "alerts": loaded.alert_names(),
                    "queries_checked": said is not None,
                },
                output,
            )
            return
        unread = (
            ""
            if said is not None
            else "; its queries were not checked, because promtool is not on PATH"
        )
        typer.echo(f"{file or 'the built-in SLO file'}: valid{unread}")


@slo.command()
def render(
    output_dir: OutputDir,
    file: SloPath = None,
    runbook_folder: Annotated[
        Path | None,
        typer.Option(
            "--runbooks",
            metavar="DIR",
            help="Folder of the runbooks; default: runbooks in --output-dir.",
        ),
    ] = None,
    output: Output = "table",
) -> None:
    """Write rules, routes, runbooks and dashboards from an SLO file."""
    with answering(output):
        from observability import dashboards
        from observability.alerts import alertmanager, rules, runbooks
        from observability.alerts.slo_file import load

        loaded = load(file)
        pages = runbooks.render(loaded, runbooks.load(loaded, file))
        texts = {
            output_dir / "rules.yaml": rules.render(loaded),
            output_dir / "alertmanager.yaml": alertmanager.render(loaded),
            **{
                (runbook_folder or output_dir / "runbooks") / name: page
                for name, page in pages.items()
            },
            **{
                output_dir / "dashboards" / name: text
                for name, text in dashboards.render(loaded).items()
            },
        }
        for path, text in texts.items():
            _write(path, text)
        if is_data(output):
            print_data({"files": [str(path) for path in texts]}, output)
        else:
            typer.echo(f"{len(texts)} files written to {output_dir}")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Problem(
            f"{path} cannot be written: {error.strerror}", "choose another --output-dir"
        ) from error
