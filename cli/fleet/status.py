"""`antefix status`: every replica of a fleet, as reported by one of its gateways.

For the fleet on this machine it also shows the programs that run with it. With `--base-url` it
reads any fleet's gateway, such as one on Kubernetes through a port-forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import GatewayClient, GatewayError
from cli.common.options import ApiKey, FleetUrl, WideOutput
from cli.common.output import CommandError, answering, is_data, not_running, print_data
from cli.fleet.status_tables import Row, ShownFleet, render
from cli.gateway.chat import where
from cli.local import cluster, monitoring
from cli.local.home import FleetState, Home

WATCH_SECONDS = 1.0


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")
    ] = False,
    base_url: FleetUrl = None,
    api_key: ApiKey = None,
    output: WideOutput = "table",
) -> None:
    """Show the replicas with their queues, KV cache use and predicted time to first token."""
    with answering(output):
        if watch and is_data(output):
            raise CommandError(
                f"--watch and -o {output} cannot be used together",
                "remove one of them",
                ExitCode.USAGE,
            )
        if api_key is not None and base_url is None:
            raise CommandError(
                "--api-key requires --base-url",
                "pass the fleet's base URL too",
                ExitCode.USAGE,
            )

        def read() -> ShownFleet:
            return _read_here(Home()) if base_url is None else _read_at(base_url, api_key)

        if watch:
            _watch(read, wide=output == "wide")
            return
        found = read()
        if is_data(output):
            print_data({"base_url": found.base_url, **found.addresses, **found.answer}, output)
        else:
            Console().print(render(found, wide=output == "wide"))
        if idle_pools(found.answer):
            raise typer.Exit(ExitCode.NOT_READY)


def idle_pools(answer: Mapping[str, Any]) -> list[str]:
    """Return the pools that should run replicas but have none."""
    return [
        name
        for name, pool in answer["pools"].items()
        if pool["target_replicas"] and not pool["states"].get("RUNNING")
    ]


def _addresses(state: FleetState) -> dict[str, Any]:
    urls = {"prometheus": state.prometheus_url, "alertmanager": state.alertmanager_url}
    running = monitoring.running(state.run_id) if any(urls.values()) else set()
    beside = {
        name: {"url": url, "running": name in running} if url else None
        for name, url in urls.items()
    }
    return {"page_url": state.page_url, "metrics_url": state.metrics_url or None, **beside}


def _address_rows(state: FleetState) -> Iterator[Row]:
    addresses = _addresses(state)
    yield "web UI", addresses["page_url"]
    if url := addresses["metrics_url"]:
        yield "metrics", url
    for name in ("prometheus", "alertmanager"):
        if server := addresses[name]:
            again = f"ended; restart: antefix up {state.fleet_file} --with-prometheus"
            yield name, server["url"] if server["running"] else again


def _watch(read: Callable[[], ShownFleet], wide: bool) -> None:
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            live.update(render(read(), wide), refresh=True)
            time.sleep(WATCH_SECONDS)


def _read_here(home: Home) -> ShownFleet:
    state = home.state()
    if state is None:
        raise not_running("for another fleet pass --base-url")
    if not cluster.is_alive(state):
        raise CommandError(
            "the fleet crashed: its Ray process is not running",
            "start it again with antefix up, or remove it with antefix down",
            ExitCode.NOT_RUNNING,
        )
    try:
        answer = GatewayClient.of(state, home.keys()).status()
    except GatewayError as error:
        if state.ready:
            raise
        remedy = "the fleet is still starting; try again"
        raise CommandError(error.message, remedy, ExitCode.NOT_READY) from error
    return ShownFleet(state.base_url, _addresses(state), list(_address_rows(state)), answer)


def _read_at(base_url: str, api_key: str | None) -> ShownFleet:
    url, key, _ = where(base_url, api_key)
    answer = GatewayClient(url, key).status()
    page = f"{url.rstrip('/').removesuffix('/v1')}/antefix/"
    return ShownFleet(url, {"page_url": page}, [("web UI", page)], answer)
