"""`antefix update`: apply a changed fleet file to the running fleet, engine by engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cli.common.exit_codes import ExitCode
from cli.common.options import FleetFile, Output
from cli.common.output import CommandError, answering, is_data, not_running, note, print_data
from cli.common.progress import ProgressStep, Steps
from cli.fleet import starting
from cli.local import cluster
from cli.local.home import FleetState, Home
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
_ANEW = "to change that, run antefix down, then antefix up"


def update(
    fleet: FleetFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would restart, without changing the fleet.")
    ] = False,
    output: Output = "table",
) -> None:
    """Apply a changed fleet file to the running fleet, step by step."""
    with answering(output):
        began = time.monotonic()
        home = Home()
        with home.turn(lambda: note("waiting for another antefix up, update or down to finish")):
            state = home.state()
            if state is None or not starting.is_running(home, state):
                raise not_running()
            address = None if state.own_ray else state.ray_address
            changed = _update(home, state, starting.wanted(fleet, state.port, address), dry_run)
        seconds = round(time.monotonic() - began, 1)
        if is_data(output):
            told = {**_told(changed), "seconds": seconds}
            print_data({**told, "status": "dry_run"} if dry_run else told, output)
        elif dry_run:
            typer.echo(f"Dry run, nothing was changed. {_sentence(changed, dry_run)}")
        else:
            typer.echo(f"{_sentence(changed)} It took {seconds:g} s.")


def _update(home: Home, state: FleetState, wanted: starting.Wanted, dry_run: bool) -> Restarts:
    """Apply the file, unless it is a dry run, and return its effects. Raises Problem."""
    if not state.fleet:
        raise CommandError(
            "an earlier release of Antefix started this fleet, so it cannot be updated in place",
            _ANEW,
            ExitCode.RESTART_REQUIRED,
        )
    with Steps() as steps:
        fleet = starting.listening_on(wanted.fleet, state)
        if state.own_ray:
            fleet = starting.with_models_here(fleet, steps)
        _check(Fleet.model_validate(state.fleet), fleet)
        _tell_of_ports(wanted.fleet, fleet)
        changed = restarts(state.fleet, fleet.model_dump(mode="json"))
        if dry_run:
            if not state.fleet_digest:
                note("the last update failed, so this one would replace all engines and gateways")
            return changed
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
            raise CommandError(
                f"{name} cannot change while the fleet runs", _ANEW, ExitCode.RESTART_REQUIRED
            )


def _tell_of_ports(wanted: Fleet, fleet: Fleet) -> None:
    """Report ports that were taken, or chosen on the command line, at the start."""
    for name, is_, says in (
        ("gateway.host", fleet.gateway.host, wanted.gateway.host),
        ("gateway.port", fleet.gateway.port, wanted.gateway.port),
        ("metrics.port", fleet.metrics.port, wanted.metrics.port),
    ):
        if is_ != says:
            note(f"{name} stays {is_} instead of {says} while the fleet runs; {_ANEW}")


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


def _sentence(changed: Restarts, dry_run: bool = False) -> str:
    were = "would be" if dry_run else "were"
    told = [
        f"{what} {were} {done}: {', '.join(names)}."
        for what, done, names in (
            ("Engines of these pools", "replaced", sorted(changed.pools)),
            ("Pools", "added", sorted(changed.added)),
            ("Pools", "removed", sorted(changed.removed)),
            ("Settings", "applied without a restart", changed.reaches_running),
        )
        if names
    ]
    if changed.gateways:
        told.insert(0, f"The gateways {were} replaced.")
    return " ".join(told) or f"Nothing {'would change' if dry_run else 'has changed'}."
