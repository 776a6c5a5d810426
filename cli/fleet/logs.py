"""`antefix logs`: the logs of the fleet's processes in order of time, each line with its component.

Gateways and engines write JSON (`deployments.process.serve_log`), which is shown as text. Redis,
Ray and vLLM write text, which is shown unchanged. A line without a time belongs to the line before
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from cli.common.exit_codes import ExitCode
from cli.common.log_line import is_json, mention_of, readable, time_of
from cli.common.options import Follow, RequestId, Tail
from cli.common.output import CommandError, answering, not_running
from cli.local import cluster
from cli.local.home import FleetState, Home
from deployments.fleet.applications import GATEWAYS_APPLICATION, application_of

FOLLOW_SECONDS = 0.3
BYTES_READ = 200_000
_OF_RAY = ("raylet.*", "gcs_server.*")


class Component(StrEnum):
    GATEWAY = "gateway"
    ENGINE = "engine"
    REDIS = "redis"
    RAY = "ray"
    MONITORING = "monitoring"
    ALL = "all"


Wanted = Callable[[str], bool]


class LogLine(NamedTuple):
    """A log line; `written_at` in epoch seconds."""

    written_at: float
    component: str
    text: str


def logs(
    follow: Follow = False,
    tail: Tail = 20,
    component: Annotated[
        Component, typer.Option(help="Show only lines of this component.")
    ] = Component.ALL,
    request: RequestId = "",
    output: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--output",
            "-o",
            help="Output format; json prints only the JSON lines of gateways and engines.",
        ),
    ] = "text",
) -> None:
    """Show the logs of the running fleet, with one short line per request."""
    with answering():
        home = Home()
        state = home.state()
        if state is None:
            raise not_running("antefix k8s logs shows those of a release on Kubernetes")
        # one request is shown with all its fields
        whole, as_json = bool(request), output == "json"
        wanted, offsets = _wanted(request, as_json), dict[Path, int]()

        def show(found: list[LogLine], count: int) -> None:
            # The sort is stable: lines of one file keep their order.
            by_time = sorted(found, key=lambda line: line.written_at)
            for line in by_time[max(0, len(by_time) - count) :]:
                text = (
                    line.text if as_json else _prefixed(line.component, readable(line.text, whole))
                )
                typer.echo(text)

        found = []
        for name, file in log_files(home, state, component, rotated=whole):
            offsets[file] = file.stat().st_size
            ending = _ending(file, tail, whole=whole or as_json)
            found += [line for line in _timed(name, file, ending) if wanted(line.text)]
        show(found, tail)
        if request and not found and not follow:
            raise CommandError(
                f"the logs contain no line about request {request!r}",
                "pass the x-request-id of its answer; requests without a valid key are not logged",
                ExitCode.FAILED,
            )
        while follow:
            time.sleep(FOLLOW_SECONDS)
            found = []
            for name, file in log_files(home, state, component):
                new = _timed(name, file, _new_lines(file, offsets))
                found += [line for line in new if wanted(line.text)]
            show(found, len(found))


def log_files(
    home: Home, state: FleetState, wanted: Component, rotated: bool = False
) -> list[tuple[str, Path]]:
    """Return the non-empty files of a component, by the time of their last change.

    `rotated`: include older files of gateways and engines.
    """
    found = [
        (component_of(file), file)
        for file in _all_files(home, state, rotated)
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
    if name.startswith(f"replica_{GATEWAYS_APPLICATION}_"):
        return Component.GATEWAY
    if name.startswith(f"replica_{application_of('')}"):
        return Component.ENGINE
    return _component_of_worker(file) if name.startswith("worker-") else Component.RAY


def _component_of_worker(file: Path) -> str:
    """Return the component of a worker's printed output, including vLLM's: Ray writes it at the
    top."""
    with file.open("rb") as log:
        top = log.read(1000).decode(errors="replace")
    if f":actor_name:ServeReplica:{GATEWAYS_APPLICATION}:" in top:
        return Component.GATEWAY
    engines = f":actor_name:ServeReplica:{application_of('')}"
    return Component.ENGINE if engines in top else Component.RAY


def _all_files(home: Home, state: FleetState, rotated: bool) -> Iterator[Path]:
    yield from home.logs.glob("*.log")
    if folder := cluster.ray_logs(state):
        older = ("serve/*.log.[0-9]*",) if rotated else ()
        for pattern in ("serve/*.log", *older, "worker-*.out", "worker-*.err", *_OF_RAY):
            yield from folder.glob(pattern)


def _wanted(request: str, as_json: bool) -> Wanted:
    about = mention_of(request)

    def wanted(line: str) -> bool:
        return (not request or bool(about.search(line))) and (not as_json or is_json(line))

    return wanted


def _ending(file: Path, count: int, whole: bool) -> list[str]:
    """Return the file's last lines, `count` or more if it has that many; all if `whole`."""
    with file.open("rb") as log:
        size = log.seek(0, 2)
        length = size if whole else BYTES_READ
        while True:
            log.seek(max(0, size - length))
            lines = log.read().decode(errors="replace").splitlines()
            if length >= size:
                return lines
            if len(lines) > count:
                return lines[1:]  # the first line may be incomplete
            length *= 2


def _timed(component: str, file: Path, lines: list[str]) -> list[LogLine]:
    """Return the file's lines with the time of each, which never decreases within a file."""
    latest = file.stat().st_mtime
    own = [time_of(line, latest) for line in lines]
    now = next((at for at in own if at is not None), latest)
    timed = []
    for line, at in zip(lines, own, strict=True):
        now = max(now, min(now if at is None else at, latest))
        timed.append(LogLine(now, component, line))
    return timed


def _new_lines(file: Path, offsets: dict[Path, int]) -> list[str]:
    """Return new whole lines. An incomplete line is left for the next call."""
    begin = offsets.get(file, 0)
    with file.open("rb") as log:
        if begin > log.seek(0, 2):
            begin = 0  # the file was rotated
        log.seek(begin)
        whole, newline, _ = log.read().rpartition(b"\n")
    offsets[file] = begin + len(whole) + len(newline)
    return whole.decode(errors="replace").splitlines()


def _prefixed(component: str, text: str) -> str:
    return "\n".join(f"{component:7} | {line}" for line in text.splitlines() or [""])
