"""`antefix profile`: run vLLM's profiler on one engine of a running fleet for a few seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.chat import where
from cli.gateway_client import GatewayClient
from cli.output import answering, note, print_json


def profile(
    pool: Annotated[str | None, typer.Option(help="Pool; default: the only one.")] = None,
    replica: Annotated[
        str | None, typer.Option(help="Replica id from antefix status; default: the only one.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration in seconds, up to 60.")] = 5.0,
    base_url: Annotated[
        str | None, typer.Option(help="Base URL of a fleet; default: the running one.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Operator's API key. Visible to other users here; OPENAI_API_KEY is not."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
) -> None:
    """Profile one serving engine with vLLM's profiler; print where the traces are."""
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
        note("open *.trace.json.gz at https://ui.perfetto.dev; see docs/profiling.md")
