"""`antefix down`: drain the fleet, then stop its processes and no others."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.common.options import Output
from cli.common.output import answering, is_data, note, print_data
from cli.fleet.stopping import stop_fleet
from cli.local.home import Home


def down(
    now: Annotated[
        bool, typer.Option("--now", help="Stop without waiting for open streams to end.")
    ] = False,
    output: Output = "table",
) -> None:
    """Stop the fleet that `antefix up` started."""
    with answering(output):
        home = Home()
        with home.turn(lambda: note("waiting for another antefix up, update or down to finish")):
            state = home.state()
            if state is not None:
                stop_fleet(home, state, drain=not now)
        if is_data(output):
            print_data({"status": "stopped" if state else "not_running"}, output)
        else:
            typer.echo("The fleet is stopped." if state else "No fleet is running here.")
