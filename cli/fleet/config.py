"""`antefix config`: check and show fleet files, and document their format."""

from __future__ import annotations

import json

import typer
import yaml

from cli.common.command_line import CommandLine
from cli.common.options import FleetFile, NoEngineArgs, Output
from cli.common.output import answering, is_data, note, print_data
from deployments.fleet.applications import serve_config
from deployments.fleet.fleet_file import check_fleet, load_fleet, raw_fleet

config = CommandLine(help="Check and show fleet files.")


@config.command()
def check(
    fleet: FleetFile,
    no_engine_args: NoEngineArgs = False,
    output: Output = "table",
) -> None:
    """Check a fleet file and its models; report every fault."""
    with answering(output):
        checked = check_fleet(fleet, check_engine_args=not no_engine_args)
        if is_data(output):
            warnings = [vars(warning) for warning in checked.warnings]
            answer = {"fleet": checked.fleet.name, "problems": [], "warnings": warnings}
            print_data({**answer, "notes": list(checked.notes)}, output)
            return
        for line in checked.lines():
            note(line)
        typer.echo(f"{fleet}: valid")


@config.command()
def show(fleet: FleetFile) -> None:
    """Print a fleet file with defaults filled in and secrets hidden."""
    with answering():
        typer.echo(load_fleet(fleet, check_engine_args=False).to_yaml(), nl=False)


@config.command()
def serve(fleet: FleetFile) -> None:
    """Print a fleet file as a Ray Serve configuration, for `serve deploy`."""
    with answering():
        load_fleet(fleet, check_engine_args=False)
        # without YAML's aliases for repeated content
        config = json.loads(json.dumps(serve_config(raw_fleet(fleet))))
        typer.echo(yaml.safe_dump(config, sort_keys=False), nl=False)


@config.command()
def schema() -> None:
    """Print the JSON Schema of fleet files, for editors."""
    from deployments.fleet.fleet_reference import json_schema

    with answering():
        typer.echo(json_schema(), nl=False)


@config.command()
def reference() -> None:
    """Print the fleet file reference, as Markdown."""
    from deployments.fleet.fleet_reference import reference as page

    with answering():
        typer.echo(page(), nl=False)
