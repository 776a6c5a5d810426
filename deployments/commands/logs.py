"""`antefix logs`: what the fleet's processes wrote, each line with its component."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deployments.commands.output import answering
from deployments.commands.output import not_running as no_fleet
from deployments.local import cluster
from deployments.local.failure import tail
from deployments.local.home import FleetState, Home

FOLLOW_SECONDS = 0.3


class Component(StrEnum):
    GATEWAY = "gateway"
    ENGINE = "engine"
    REDIS = "redis"
    RAY = "ray"
    ALL = "all"


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", min=0, help="Last lines of each file.")] = 20,
    component: Annotated[Component, typer.Option(help="Whose.")] = Component.ALL,
) -> None:
    """Show the logs of the running fleet."""
    with answering():
        home = Home()
        state = home.state()
        if state is None:
            raise no_fleet()
        offsets: dict[Path, int] = {}
        for name, file in log_files(home, state, component):
            offsets[file] = file.stat().st_size
            for line in tail(file)[-lines:] if lines else []:
                typer.echo(_prefixed(name, line))
        while follow:
            time.sleep(FOLLOW_SECONDS)
            for name, file in log_files(home, state, component):
                for line in _new_lines(file, offsets):
                    typer.echo(_prefixed(name, line))


def log_files(home: Home, state: FleetState, wanted: Component) -> list[tuple[str, Path]]:
    """Files of a component that hold anything, by the time they were last written."""
    found = [
        (component_of(file), file)
        for file in _all_files(home, state)
        if file.is_file() and file.stat().st_size
    ]
    chosen = [(name, file) for name, file in found if wanted in (Component.ALL, name)]
    return sorted(chosen, key=lambda entry: entry[1].stat().st_mtime)


def component_of(file: Path) -> str:
    name = file.name
    if name.startswith("redis"):
        return Component.REDIS
    if name.startswith("replica_antefix_gateway_"):
        return Component.GATEWAY
    if name.startswith("replica_antefix_"):
        return Component.ENGINE
    return _component_of_worker(file) if name.startswith("worker-") else Component.RAY


def _component_of_worker(file: Path) -> str:
    """Whose printed output it is, vLLM's own included: Ray writes that at its top."""
    with file.open("rb") as log:
        top = log.read(1000)
    if b":actor_name:ServeReplica:antefix:gateway" in top:
        return Component.GATEWAY
    return Component.ENGINE if b":actor_name:ServeReplica:antefix:" in top else Component.RAY


def _all_files(home: Home, state: FleetState) -> Iterator[Path]:
    yield from home.logs.glob("*.log")
    if folder := cluster.ray_logs(state):
        for pattern in ("serve/*.log", "worker-*.out", "worker-*.err", "raylet.*", "gcs_server.*"):
            yield from folder.glob(pattern)


def _new_lines(file: Path, offsets: dict[Path, int]) -> list[str]:
    """Whole lines only: half a line is left for the next time."""
    begin = offsets.get(file, 0)
    with file.open("rb") as log:
        if begin > log.seek(0, 2):
            begin = 0  # rotated
        log.seek(begin)
        whole, newline, _ = log.read().rpartition(b"\n")
    offsets[file] = begin + len(whole) + len(newline)
    return whole.decode(errors="replace").splitlines()


def _prefixed(component: str, line: str) -> str:
    return f"{component:7} | {line}"
