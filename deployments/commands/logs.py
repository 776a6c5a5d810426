"""`antefix logs`: what the fleet's processes wrote, each line with its component.

Gateways and engines write JSON (`deployments.serve_log`), which is shown as text for people;
Redis, Ray and vLLM write text, which is shown as it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deployments.commands.log_line import is_json, readable
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
    MONITORING = "monitoring"
    ALL = "all"


Wanted = Callable[[str], bool]


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", min=0, help="Last lines of each file.")] = 20,
    component: Annotated[Component, typer.Option(help="Whose.")] = Component.ALL,
    request: Annotated[str, typer.Option(metavar="ID", help="Lines about this request.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="The JSON lines of gateways and engines, as they are.")
    ] = False,
) -> None:
    """Show the logs of the running fleet."""
    with answering():
        home = Home()
        state = home.state()
        if state is None:
            raise no_fleet()
        wanted, offsets = _wanted(request, as_json), dict[Path, int]()

        def show(name: str, line: str) -> None:
            typer.echo(line if as_json else _prefixed(name, readable(line)))

        for name, file in log_files(home, state, component):
            offsets[file] = file.stat().st_size
            for line in _last(file, lines, wanted, whole=bool(request)):
                show(name, line)
        while follow:
            time.sleep(FOLLOW_SECONDS)
            for name, file in log_files(home, state, component):
                for line in filter(wanted, _new_lines(file, offsets)):
                    show(name, line)


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
    if name.startswith(("prometheus", "alertmanager")):
        return Component.MONITORING
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


def _wanted(request: str, as_json: bool) -> Wanted:
    # vLLM puts something before and after a request's id
    about = re.compile(rf"(?<![A-Za-z0-9]){re.escape(request)}(?![A-Za-z0-9])")

    def wanted(line: str) -> bool:
        return (not request or bool(about.search(line))) and (not as_json or is_json(line))

    return wanted


def _last(file: Path, count: int, wanted: Wanted, whole: bool) -> list[str]:
    """The last lines that are wanted; `whole`: however far back they are."""
    if not count:
        return []
    if not whole:
        return list(filter(wanted, tail(file)))[-count:]
    with file.open(errors="replace") as log:
        return [line.rstrip("\n") for line in log if wanted(line)][-count:]


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


def _prefixed(component: str, text: str) -> str:
    return "\n".join(f"{component:7} | {line}" for line in text.splitlines() or [""])
