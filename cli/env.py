"""`antefix env`: the running fleet as shell variables for any OpenAI client."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from cli.local.home import Home
from cli.output import answering, not_running, print_json


def env(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
) -> None:
    """Print OPENAI_BASE_URL and OPENAI_API_KEY; use it as: eval "$(antefix env)"."""
    with answering(as_json):
        home = Home()
        state = home.state()
        if state is None:
            raise not_running()
        variables = {"OPENAI_BASE_URL": state.base_url, "OPENAI_API_KEY": home.keys().api_key}
        if as_json:
            print_json(variables)
            return
        for name, value in variables.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
