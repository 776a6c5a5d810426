"""`antefix profile`: vLLM's profiler on one engine of a running fleet, for a few seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.chat import where
from cli.gateway_client import GatewayClient
from cli.output import answering, note, print_json


def profile(
    pool: Annotated[str | None, typer.Option(help="Of which pool; else the only one.")] = None,
    replica: Annotated[
        str | None, typer.Option(help="By its id in antefix status; else the only one.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="For how long, up to 60.")] = 5.0,
    base_url: Annotated[str | None, typer.Option(help="A fleet's address.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="An operator's. Others on this machine can see it: OPENAI_API_KEY."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Profile one engine while it serves, and say where the traces are."""
    with answering(as_json):
        url, key, _ = where(base_url, api_key)
        if not as_json:
            note(f"profiling for {seconds:g} s; writing the traces may take minutes")
        found = GatewayClient(url, key).profile(pool, replica, seconds)
        if as_json:
            print_json(found)
            return
        typer.echo(f"{found['replica']} of {found['pool']}, on node {found['node_ip']}:")
        for file in found["files"]:
            typer.echo(f"{found['folder']}/{file['name']}  {file['bytes'] / 1e6:,.1f} MB")
        note("open *.trace.json.gz at https://ui.perfetto.dev; docs/profiling.md says more")
