"""`antefix slo`: check an SLO file, and generate rules, alerts, runbooks and dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.command_line import CommandLine
from cli.output import answering, print_json
from common.errors import Problem

slo = CommandLine(help="Check SLO files; write rules, alerts, runbooks and dashboards.")

SloPath = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="SLO file; default: the built-in one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@slo.command()
def check(file: SloPath = None, as_json: AsJson = False) -> None:
    """Check an SLO file, and its queries if promtool is installed."""
    with answering(as_json):
        from observability import runbooks
        from observability.promtool import complaints
        from observability.rules import render as rules
        from observability.slo import SHIPPED, load

        loaded = load(file)
        runbooks.load(loaded, file)
        said = complaints(rules(loaded))
        if said:
            raise Problem(f"{file or SHIPPED}: {said}", "correct the query")
        if as_json:
            print_json(
                {
                    "slos": [of.name for of in loaded.slos],
                    "alerts": loaded.alert_names(),
                    "queries_checked": said is not None,
                }
            )
            return
        unread = "" if said is not None else "; its queries were not read: promtool is not on PATH"
        typer.echo(f"{file or 'the shipped SLO file'}: fine{unread}")


@slo.command()
def render(
    out: Annotated[Path, typer.Option(help="Folder to write to; created if missing.")],
    file: SloPath = None,
    runbook_folder: Annotated[
        Path | None, typer.Option("--runbooks", help="Runbook folder; default: OUT/runbooks.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write rules, routes, runbooks and dashboards from an SLO file."""
    with answering(as_json):
        from observability import alertmanager, dashboards, rules, runbooks
        from observability.slo import load

        loaded = load(file)
        pages = runbooks.render(loaded, runbooks.load(loaded, file))
        texts = {
            out / "rules.yaml": rules.render(loaded),
            out / "alertmanager.yaml": alertmanager.render(loaded),
            **{(runbook_folder or out / "runbooks") / name: page for name, page in pages.items()},
            **{out / "dashboards" / name: text for name, text in dashboards.render(loaded).items()},
        }
        for path, text in texts.items():
            _write(path, text)
        if as_json:
            print_json({"files": [str(path) for path in texts]})
        else:
            typer.echo(f"{len(texts)} files written to {out}")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Problem(
            f"{path} cannot be written: {error.strerror}", "name another --out"
        ) from error
