"""The end of a fleet: what `antefix down` and `antefix up --foreground` have in common."""

from __future__ import annotations

from cli.local import cluster
from cli.local.home import FleetState, Home
from cli.output import note
from cli.progress import Steps
from common.errors import Problem


def stop_fleet(home: Home, state: FleetState, drain: bool) -> None:
    """On a Ray of its own, a fleet that cannot be drained is ended all the same. On another's,
    raises Problem, for it would go on running there.
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
