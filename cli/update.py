"""`antefix update`: apply a changed fleet file to the running fleet, engine by engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cli import starting
from cli.exit_codes import ExitCode
from cli.local import cluster
from cli.local.home import FleetState, Home
from cli.output import CommandError, answering, not_running, note, print_json
from cli.progress import ProgressStep, Steps
from deployments.fleet.applications import Restarts, restarts
from deployments.fleet.fleet import Fleet

# Settings with which processes other than gateways and engines were started, or by which they are
# found.
_FIXED: tuple[tuple[str, Callable[[Fleet], Any]], ...] = (
    ("name", lambda fleet: fleet.name),
    ("redis.url", lambda fleet: fleet.redis.url),
    ("metrics", lambda fleet: fleet.metrics),
    ("gateway.host", lambda fleet: fleet.gateway.host),
)
_ANEW = "to change that: antefix down, then antefix up"


def update(
    fleet: Annotated[str, typer.Argument(help="Fleet file path, or built-in fleet name.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
) -> None:
    """Apply a changed fleet file to the running fleet, step by step."""
    with answering(as_json):
        began = time.monotonic()
        home = Home()
        with home.turn(lambda: note("waiting for another antefix up, update or down to finish")):
            state = home.state()
            if state is None or not starting.is_running(home, state):
                raise not_running()
            address = None if state.own_ray else state.ray_address
            changed = _update(home, state, starting.wanted(fleet, state.port, address))
        seconds = round(time.monotonic() - began, 1)
        if as_json:
            print_json({**_told(changed), "seconds": seconds})
        else:
            typer.echo(f"{_sentence(changed)} It took {seconds:g} s.")


def _update(home: Home, state: FleetState, wanted: starting.Wanted) -> Restarts:
    """Apply the file. Raises Problem."""
    if not state.fleet:
        raise CommandError(
            "an earlier release of Antefix started this fleet", _ANEW, ExitCode.CONFLICT
        )
    with Steps() as steps:
        fleet = starting.listening_on(wanted.fleet, state)
        if state.own_ray:
            fleet = starting.with_models_here(fleet, steps)
        _check(Fleet.model_validate(state.fleet), fleet)
        _tell_of_ports(wanted.fleet, fleet)
        changed = restarts(state.fleet, fleet.model_dump(mode="json"))
        # the state that a failed update has left is unknown
        before = state.fleet if state.fleet_digest else {}
        state = dataclasses.replace(
            state,
            fleet_digest="",
            fleet_file=wanted.name,
            model=next(iter(fleet.pools.values())).served_model_name,
            drain_timeout_s=fleet.gateway.drain_timeout_s,
        )
        with steps.step("Engines") as step:
            show = _Showing(step).show
            state = cluster.deploy(home, state, fleet, home.keys(), show, before)
    home.save_state(dataclasses.replace(state, fleet_digest=wanted.digest))
    return changed


def _check(running: Fleet, fleet: Fleet) -> None:
    """Raise CommandError for settings that cannot change while the fleet runs."""
    for name, of in _FIXED:
        if of(running) != of(fleet):
            raise CommandError(f"a running fleet keeps its {name}", _ANEW, ExitCode.CONFLICT)


def _tell_of_ports(wanted: Fleet, fleet: Fleet) -> None:
    """Report ports that were taken, or chosen on the command line, at the start."""
    for name, is_, says in (
        ("gateway.host", fleet.gateway.host, wanted.gateway.host),
        ("gateway.port", fleet.gateway.port, wanted.gateway.port),
        ("metrics.port", fleet.metrics.port, wanted.metrics.port),
    ):
        if is_ != says:
            note(f"{name} stays {is_} instead of {says}: a running fleet keeps it; {_ANEW}")


class _Showing:
    """The progress of the pools."""

    def __init__(self, step: ProgressStep) -> None:
        self._step = step

    def show(self, pools: dict[str, Any]) -> None:
        running = sum(pool["running"] for pool in pools.values())
        target = max(1, sum(pool["target"] for pool in pools.values()))
        delays = (f"{name}: {pool['delay']}" for name, pool in pools.items() if pool["delay"])
        self._step.show(
            running / target, "; ".join((f"{running} of {target} engines serve", *delays))
        )


def _told(changed: Restarts) -> dict[str, Any]:
    return {
        "status": "updated",
        "gateways_restarted": changed.gateways,
        "pools_restarted": sorted(changed.pools),
        "pools_added": sorted(changed.added),
        "pools_removed": sorted(changed.removed),
        "reached_what_runs": list(changed.reaches_running),
    }


def _sentence(changed: Restarts) -> str:
    told = [
        f"{what} {', '.join(sorted(pools))}."
        for what, pools in (
            ("Engines were replaced in", changed.pools),
            ("Added:", changed.added),
            ("Removed:", changed.removed),
        )
        if pools
    ]
    if changed.gateways:
        told.insert(0, "The gateways were replaced.")
    if changed.reaches_running:
        told.append(f"Applied without a restart: {', '.join(changed.reaches_running)}.")
    return " ".join(told) or "Nothing has changed."
