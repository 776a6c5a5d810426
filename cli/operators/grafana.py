"""`antefix grafana`: push, compare and pull the dashboards of a Grafana."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common.command_line import CommandLine
from cli.common.exit_codes import ExitCode
from cli.common.options import Output, OutputDir
from cli.common.output import CommandError, answering, is_data, note, print_data
from common.errors import Problem

if TYPE_CHECKING:
    from observability.grafana import Compared, Dashboard, Grafana

grafana = CommandLine(
    help="Push the dashboards to Grafana, compare them, and pull edits back. "
    "Set GRAFANA_URL and GRAFANA_TOKEN (a service account's token).",
)

Folder = Annotated[
    str, typer.Option("--folder", metavar="TITLE", help="Title of the Grafana folder.")
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Folder that antefix slo render wrote; default: the built-in dashboards.",
    ),
]


@grafana.command()
def push(
    folder: Folder = "Antefix",
    directory: Directory = None,
    datasource_url: Annotated[
        str | None,
        typer.Option(
            help="Create a data source named Antefix for the Prometheus at this URL, as seen "
            "from Grafana."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite dashboards that were edited in Grafana.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, without changing it.")
    ] = False,
    output: Output = "table",
) -> None:
    """Create or update the dashboards; keep those that were edited in Grafana."""
    with answering(output):
        from observability.grafana import DATASOURCE, PushState

        ours, there = _dashboards(directory), _grafana()
        lines: list[dict[str, str]] = []
        if datasource_url is not None:
            moved = there.point_datasource(datasource_url, dry_run)
            result = "updated" if moved else "unchanged"
            lines.append({"title": f"data source {DATASOURCE}", "result": result})
        uid = there.folder(folder)
        for compared in there.compare(ours, uid):
            state = compared.state
            if state is PushState.SAME:
                result = "unchanged"
            elif state is PushState.EDITED and not force:
                result = "kept"
            else:
                result = "created" if state is PushState.MISSING else "updated"
                if not dry_run:
                    uid = uid or there.create_folder(folder)
                    there.save(compared, uid)
            lines.append({"title": compared.title, "result": result, "by": _author(compared)})
        kept = [line for line in lines if line["result"] == "kept"]
        if is_data(output):
            print_data({"folder": folder, "dry_run": dry_run, "dashboards": lines}, output)
        else:
            _say(lines, dry_run)
        if kept:
            raise typer.Exit(ExitCode.FOUND)


@grafana.command()
def diff(folder: Folder = "Antefix", directory: Directory = None, output: Output = "table") -> None:
    """Show what a push would change.

    The command exits with 0 if nothing would change, and otherwise with 1.
    """
    with answering(output):
        there = _grafana()
        compared = there.compare(_dashboards(directory), there.folder(folder))
        different = [one for one in compared if one.diff()]
        if is_data(output):
            told = [{"title": c.title, "state": c.state, "diff": c.diff()} for c in compared]
            print_data({"different": bool(different), "dashboards": told}, output)
        else:
            for one in different:
                typer.echo(one.diff(), nl=False)
            for one in different:
                by = _author(one)
                note(f"{one.title}: {one.state} in Grafana{f', by {by}' if by else ''}")
            if not different:
                note("no difference")
        if different:
            raise typer.Exit(ExitCode.FOUND)


@grafana.command()
def pull(
    output_dir: OutputDir,
    folder: Folder = "Antefix",
    output: Output = "table",
) -> None:
    """Write Grafana's dashboards to files, without the ids that belong to that Grafana."""
    with answering(output):
        from observability.grafana import as_text, file_name

        there = _grafana()
        uid = there.folder(folder)
        if uid is None:
            raise Problem(f"Grafana has no folder {folder}", "name another --folder, or push first")
        texts = {
            output_dir / file_name(title): as_text(there.dashboard(title, of).content)
            for title, of in sorted(there.titles(uid).items())
        }
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Problem(
                f"{error.filename} cannot be written: {error.strerror}",
                "choose another --output-dir",
            ) from error
        if is_data(output):
            print_data({"files": [str(path) for path in texts]}, output)
        else:
            typer.echo(f"{len(texts)} dashboards written to {output_dir}")


def _dashboards(directory: Path | None) -> list[Dashboard]:
    from observability.grafana import SHIPPED, read

    return read(directory or SHIPPED)


def _grafana() -> Grafana:
    from observability.grafana import Grafana

    missing = [name for name in ("GRAFANA_URL", "GRAFANA_TOKEN") if not os.environ.get(name)]
    if missing:
        raise CommandError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set",
            "GRAFANA_URL is Grafana's address, GRAFANA_TOKEN the token of a service account "
            "with the role Editor",
            ExitCode.USAGE,
        )
    there = Grafana(os.environ["GRAFANA_URL"], os.environ["GRAFANA_TOKEN"])
    there.check()
    return there


def _author(compared: Compared) -> str:
    """Return who edited the dashboard in Grafana; empty if it was not edited."""
    return compared.theirs.author if compared.theirs and compared.state == "edited" else ""


def _say(lines: list[dict[str, str]], dry_run: bool) -> None:
    for line in lines:
        would = "would be " if dry_run and line["result"] not in ("unchanged", "kept") else ""
        typer.echo(f"{line['title']}: {would}{line['result']}")
    for line in lines:
        if line["result"] == "kept":
            by = f" by {line['by']}" if line["by"] else ""
            note(
                f"{line['title']} was edited in Grafana{by} since the last push, and kept; "
                "antefix grafana pull brings the edit here, --force overwrites it"
            )
