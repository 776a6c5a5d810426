"""The end of a fleet, for `antefix down` and `antefix up --foreground`."""

from __future__ import annotations

from cli.common.output import note
from cli.common.progress import Steps
from cli.local import cluster
from cli.local.home import FleetState, Home
from common.errors import Problem


def stop_fleet(home: Home, state: FleetState, drain: bool) -> None:
    """Stop a fleet. On its own Ray, a fleet that cannot be drained is stopped nevertheless.

    On another's Ray, it raises Problem, because the fleet would continue to run there.
    """
    with Steps() as steps:
        if state.deployed and (not state.own_ray or (drain and cluster.is_alive(state))):
            with steps.step("Draining") as step:
                step.show(None, f"streams in flight may take up to {state.drain_timeout_s:g} s")
                _remove(home, state)
        with steps.step("Stopping"):
            cluster.stop(home, state)


def _remove(home: Home, state: FleetState) -> None:
    try:
        cluster.remove(home, state)
    except Problem as error:
        if not state.own_ray:
            raise
        note(f"not drained: {error.message}")
