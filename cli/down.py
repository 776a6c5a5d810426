"""`antefix down`: drain the fleet, then stop its processes and no others."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.local.home import Home
from cli.output import answering, note, print_json
from cli.stopping import stop_fleet


def down(
    now: Annotated[
        bool, typer.Option("--now", help="Stop without waiting for open streams.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
) -> None:
    """Stop the fleet that `antefix up` started."""
    with answering(as_json):
        home = Home()
        with home.turn(lambda: note("waiting for another antefix up, update or down to finish")):
            state = home.state()
            if state is not None:
                stop_fleet(home, state, drain=not now)
        if as_json:
            print_json({"status": "stopped" if state else "not_running"})
        else:
            typer.echo("The fleet is stopped." if state else "No fleet is running here.")
