"""`antefix canary`: where a model's canary is, and an operator's word on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli.common.command_line import CommandLine
from cli.common.gateway_client import GatewayClient
from cli.common.options import FleetUrl, OperatorKey, Output
from cli.common.output import answering, is_data, note, print_data, print_table
from cli.gateway.chat import where

canary = CommandLine(help="Show, promote and abort canaries of a running fleet.")

# The share is that of new conversations.
HEADINGS = ("model", "canary", "status", "step", "share", "reason")

Model = Annotated[str, typer.Argument(help="Name of the model, as in `models` of the fleet file.")]


@canary.command()
def status(
    base_url: FleetUrl = None, api_key: OperatorKey = None, output: Output = "table"
) -> None:
    """Show each canary's step and share, and why it ended."""
    with answering(output):
        url, key, _ = where(base_url, api_key)
        found = GatewayClient(url, key).canaries()
        if is_data(output):
            print_data(found, output)
            return
        if found:
            print_table(HEADINGS, (_row(name, of) for name, of in found.items()))
        else:
            note("no model has a canary")


@canary.command()
def promote(
    model: Model, base_url: FleetUrl = None, api_key: OperatorKey = None, output: Output = "table"
) -> None:
    """Give a canary all new conversations."""
    _end(model, "promote", base_url, api_key, output)


@canary.command()
def abort(
    model: Model, base_url: FleetUrl = None, api_key: OperatorKey = None, output: Output = "table"
) -> None:
    """Take all conversations away from a canary immediately."""
    _end(model, "abort", base_url, api_key, output)


def _end(model: str, action: str, base_url: str | None, api_key: str | None, output: str) -> None:
    with answering(output):
        url, key, _ = where(base_url, api_key)
        found = GatewayClient(url, key).end_canary(model, action)
        if is_data(output):
            print_data(found, output)
        else:
            print_table(HEADINGS, [_row(model, found)])


def _row(name: str, canary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a canary, as GET /antefix/canaries has it."""
    of, state, steps = canary.get("adapter") or canary["pool"], canary["state"], canary["steps"]
    if state is None:
        return name, of, "not begun", "", "", ""
    step = f"{state['step'] + 1} of {len(steps)}" if state["status"] == "running" else ""
    return name, of, state["status"], step, f"{canary['share']:.0%}", state["why"] or ""
