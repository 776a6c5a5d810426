"""`antefix up`: start a fleet from its file, and send a first request."""

from __future__ import annotations

import json
import shlex
import signal
import time
from typing import Annotated, Any

import typer

from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import FIRST_QUESTION, GatewayClient, GatewayError
from cli.common.named_model import check_model
from cli.common.options import Output
from cli.common.output import CommandError, answering, is_data, note, print_data
from cli.fleet import starting
from cli.fleet.starter_fleet import name_of, write_starter
from cli.fleet.status_tables import dtypes_in_words
from cli.fleet.stopping import stop_fleet
from cli.local import cluster
from cli.local.home import FleetState, Home
from cli.local.ports import ANY_ADDRESS, own_address
from common.errors import Problem
from common.machine import has_cpu_build, require_fleet_packages

WATCH_SECONDS = 1.0


def up(
    fleet: Annotated[
        str | None,
        typer.Argument(help="Path of a fleet file, or name of a built-in fleet; default: laptop."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Write a fleet file for this model, and start that fleet."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on; default: gateway.host. 0.0.0.0 also serves other machines.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on; default: gateway.port. 0 picks a free one."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Ray cluster to deploy on, instead of starting one here."
        ),
    ] = None,
    with_prometheus: Annotated[
        bool,
        typer.Option(
            "--with-prometheus",
            help="Also start Prometheus and Alertmanager, with Antefix's rules.",
        ),
    ] = False,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground",
            help="Stay in the foreground. SIGTERM or Ctrl-C drains and stops the fleet.",
        ),
    ] = False,
    output: Output = "table",
) -> None:
    """Start a fleet, send a first request, and leave it running."""
    with answering(output):
        # When systemd or a closed terminal ends it, `up` cleans up as after Ctrl-C.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        began = time.monotonic()
        require_fleet_packages()
        home = Home()
        file = fleet_file(home, fleet, model)
        wanted = starting.wanted(file, port, address, with_prometheus, host=host)
        with home.turn(lambda: note("waiting for another antefix up, update or down to finish")):
            result = starting.start(home, wanted)
        _print_result(home, result, time.monotonic() - began, output)
        if foreground:
            _stay(home, result.state)


def fleet_file(home: Home, fleet: str | None, model: str | None) -> str:
    """Return the given fleet file, or one written for `model`, which users may edit."""
    if model is None:
        return fleet or "laptop"
    if fleet is not None:
        raise CommandError(
            f"{fleet} and --model {model} cannot be used together",
            "remove one of them; a fleet file has its own `model`",
            ExitCode.USAGE,
        )
    check_model(model)
    file = home.folder / "fleets" / f"{name_of(model)}.yaml"
    if not file.exists():
        write_starter(model, has_cpu_build(), file)
        note(f"wrote {file}; edit it and run antefix update {file}")
    return str(file)


def _interrupt(signal_number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _print_result(home: Home, result: starting.Started, seconds: float, output: str) -> None:
    state, api_key = result.state, home.keys().api_key
    if is_data(output):
        print_data(
            {
                "status": "started" if result.answer is not None else "already_running",
                "fleet": state.fleet_file,
                "base_url": state.base_url,
                "api_key": api_key,
                "model": state.model,
                "answer": result.answer,
                "seconds": round(seconds, 1),
                "page_url": state.page_url,
                "metrics_url": state.metrics_url or None,
                "prometheus_url": state.prometheus_url or None,
                "alertmanager_url": state.alertmanager_url or None,
            },
            output,
        )
        return
    if result.answer is None:
        typer.echo(f"This fleet is already running at {state.base_url}\n")
    else:
        typer.echo(f"\n{FIRST_QUESTION}\n{result.answer}\n\nReady after {seconds:.0f} s.\n")
    typer.echo(_card(state, api_key, _dtypes(state, home)))


def _dtypes(state: FleetState, home: Home) -> str:
    try:
        return dtypes_in_words(*GatewayClient.of(state, home.keys()).status()["pools"].values())
    except GatewayError:  # the fleet has answered its first question, so this is no reason to fail
        return ""


def _card(state: FleetState, api_key: str, dtypes: str) -> str:
    body: dict[str, Any] = {
        "model": state.model,
        "messages": [{"role": "user", "content": FIRST_QUESTION}],
    }
    addresses = {
        "Base URL": state.base_url,
        "Elsewhere": elsewhere(state),
        "API key": api_key,
        "Model": state.model,
        "Dtype": dtypes,
        # The part after the # stays in the browser.
        "Web UI": f"{state.page_url}#key={api_key}",
        "Metrics": state.metrics_url,
        "Prometheus": state.prometheus_url,
        "Alerts": state.alertmanager_url,
    }
    shown = "\n".join(f"{name:10}  {value}" for name, value in addresses.items() if value)
    return f"""\
{shown}

curl {state.base_url}/chat/completions -H 'Authorization: Bearer {api_key}' \
-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}

Next: antefix chat, antefix status, eval "$(antefix env)", antefix down"""


def elsewhere(state: FleetState) -> str:
    """Return the base URL for other machines, if gateways listen on every address."""
    if state.host not in ANY_ADDRESS or not state.own_ray or not (here := own_address()):
        return ""
    return f"http://{here}:{state.port}/v1, over plain HTTP"


def _stay(home: Home, state: FleetState) -> None:
    """Wait for a signal, then drain and stop; if the fleet crashes, fail."""
    asked_to_stop = False

    def ask(signal_number: int, frame: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    while not asked_to_stop:
        time.sleep(WATCH_SECONDS)
        recorded = home.state()
        if recorded is None or recorded.run_id != state.run_id:
            return  # `antefix down` ended it
        if not cluster.is_alive(state):
            with home.turn(lambda: None):
                cluster.stop(home, state)
            # `antefix logs` reads only a running fleet
            folders = filter(None, (home.logs, cluster.ray_logs(state)))
            raise Problem("the fleet crashed", f"see its logs in {' and '.join(map(str, folders))}")
    with home.turn(lambda: None):
        stop_fleet(home, state, drain=True)
