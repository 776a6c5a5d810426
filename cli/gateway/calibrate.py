"""`antefix calibrate`: measure an engine of the running fleet, for `antefix backtest`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import GatewayClient
from cli.common.named_pool import named_pool
from cli.common.options import Output
from cli.common.output import CommandError, answering, is_data, not_running, note, print_data
from cli.local.home import Home
from common.errors import Problem


def calibrate(
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="File to write, for antefix backtest --calibration."),
    ],
    pool: Annotated[str | None, typer.Option(help="Pool to measure; default: the first.")] = None,
    output: Output = "table",
) -> None:
    """Measure an idle engine of the running fleet, for antefix backtest."""
    with answering(output):
        home = Home()
        state = home.state()
        if state is None:
            raise not_running()
        keys = home.keys()
        name, of_pool = named_pool(GatewayClient.of(state, keys).status()["pools"], pool)
        if not of_pool["replicas"]:
            raise CommandError(
                f"the pool {name} has no running replica",
                "antefix status shows its replicas",
                ExitCode.NOT_READY,
            )
        if not any(replica["url"] for replica in of_pool["replicas"]):
            raise Problem(
                f"the addresses of the pool {name}'s replicas are not known",
                "see antefix status; with several tenants, only operators see addresses:"
                " set gateway.tenants.default.operator to true",
            )
        found = asyncio.run(_measured(of_pool, keys.engine_secret))
        try:
            out.write_bytes(found)
        except OSError as error:
            raise Problem(
                f"{out} cannot be written: {error.strerror}", "choose another file"
            ) from error
        if is_data(output):
            import json

            print_data(json.loads(found), output)
        else:
            typer.echo(found.decode(), nl=False)
            note(f"written to {out}; next: antefix backtest --calibration {out}")


async def _measured(pool: dict[str, Any], secret: str) -> bytes:
    import aiohttp

    from cli.gateway import calibrating, stream_client
    from deployments.wire.engine_pass import EnginePasses
    from simulator import engine_profile

    replica = next(replica for replica in pool["replicas"] if replica["url"])
    headers = EnginePasses(secret).headers(replica["url"])
    endpoint = stream_client.Endpoint(replica["replica"], replica["url"], headers)
    try:
        async with stream_client.session() as http:
            found = await calibrating.calibrated(http, endpoint, pool["model"])
    except aiohttp.ClientError as error:
        raise Problem(
            f"the engine {replica['replica']} did not finish: {error}", "see antefix logs"
        ) from error
    return engine_profile.to_json(found)
