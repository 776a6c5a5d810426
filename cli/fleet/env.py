"""`antefix env`: the running fleet as shell variables for any OpenAI client."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import typer

from cli.common.output import answering, is_data, not_running, print_data
from cli.local.home import Home


def env(
    output: Annotated[
        Literal["shell", "json", "yaml"], typer.Option("--output", "-o", help="Output format.")
    ] = "shell",
) -> None:
    """Print OPENAI_BASE_URL and OPENAI_API_KEY for a shell: eval "$(antefix env)"."""
    with answering(output):
        home = Home()
        state = home.state()
        if state is None:
            raise not_running()
        variables = {"OPENAI_BASE_URL": state.base_url, "OPENAI_API_KEY": home.keys().api_key}
        if is_data(output):
            print_data(variables, output)
            return
        for name, value in variables.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
