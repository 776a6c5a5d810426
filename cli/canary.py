"""`antefix canary`: where a model's canary is, and an operator's word on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli.chat import where
from cli.command_line import CommandLine
from cli.gateway_client import GatewayClient
from cli.output import answering, print_json

canary = CommandLine(help="Show, promote and abort canaries of a running fleet.")

Model = Annotated[str, typer.Argument(help="Name of the model, as in `models` of the fleet file.")]
BaseUrl = Annotated[str | None, typer.Option(help="Base URL of a fleet; default: the running one.")]
ApiKey = Annotated[
    str | None,
    typer.Option(help="Operator's API key. Visible to other users here; OPENAI_API_KEY is not."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@canary.command()
def status(base_url: BaseUrl = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Show each canary's step and share, and why it ended."""
    with answering(as_json):
        url, key, _ = where(base_url, api_key)
        found = GatewayClient(url, key).canaries()
        if as_json:
            print_json(found)
            return
        for name, of in found.items():
            typer.echo(in_words(name, of))
        if not found:
            typer.echo("no model has a canary")


@canary.command()
def promote(
    model: Model, base_url: BaseUrl = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Give a canary all new conversations."""
    _end(model, "promote", base_url, api_key, as_json)


@canary.command()
def abort(
    model: Model, base_url: BaseUrl = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Take all conversations from a canary at once."""
    _end(model, "abort", base_url, api_key, as_json)


def _end(model: str, action: str, base_url: str | None, api_key: str | None, as_json: bool) -> None:
    with answering(as_json):
        url, key, _ = where(base_url, api_key)
        found = GatewayClient(url, key).end_canary(model, action)
        if as_json:
            print_json(found)
        else:
            typer.echo(in_words(model, found))


def in_words(name: str, canary: Mapping[str, Any]) -> str:
    """One line for a canary, as GET /antefix/canaries has it."""
    of, state, steps = canary.get("adapter") or canary["pool"], canary["state"], canary["steps"]
    if state is None:
        return f"{name}: {of} has not begun"
    step = f"step {state['step'] + 1} of {len(steps)}, " if state["status"] == "running" else ""
    share = f"{step}{canary['share']:.0%} of new conversations"
    why = f": {state['why']}" if state["why"] else ""
    return f"{name}: {of} is {state['status']}, {share}{why}"
