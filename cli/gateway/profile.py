"""`antefix profile`: run vLLM's profiler on one engine of a running fleet for a few seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.common.duration import Duration
from cli.common.duration import duration as durations
from cli.common.gateway_client import GatewayClient
from cli.common.options import FleetUrl, OperatorKey, Output
from cli.common.output import answering, is_data, note, print_data
from cli.gateway.chat import where

DEFAULT_DURATION = Duration(5)


def profile(
    pool: Annotated[
        str | None, typer.Option(help="Pool of the engine; default: the only pool.")
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            help="Replica to profile, by its id in antefix status; default: the only replica."
        ),
    ] = None,
    duration: Annotated[
        Duration,
        typer.Option(
            parser=durations(), metavar="DURATION", help="How long to profile, at most 60s."
        ),
    ] = DEFAULT_DURATION,
    base_url: FleetUrl = None,
    api_key: OperatorKey = None,
    output: Output = "table",
) -> None:
    """Profile one serving engine with vLLM's profiler; print where the traces are."""
    with answering(output):
        url, key, _ = where(base_url, api_key)
        if not is_data(output):
            note(f"profiling for {duration}; writing the traces may take minutes")
        found = GatewayClient(url, key).profile(pool, replica, duration)
        if is_data(output):
            print_data(found, output)
            return
        typer.echo(f"{found['replica']} of {found['pool']}, on node {found['node_ip']}:")
        for file in found["files"]:
            typer.echo(f"{found['folder']}/{file['name']}  {file['bytes'] / 1e6:,.1f} MB")
        note("open *.trace.json.gz at https://ui.perfetto.dev; see docs/profiling.md")
