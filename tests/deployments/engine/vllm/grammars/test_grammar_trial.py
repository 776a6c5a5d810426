"""A constraint is compiled in a process that the kernel ends where it takes too much."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.engine.vllm.grammars.grammar_follow import TOKEN_MS
from deployments.engine.vllm.grammars.grammar_trial import (
    MOST_CPU_S,
    SETUP,
    TrialKind,
    TrialVerdict,
    message_of,
)
from tests.deployments.engine.vllm.known_constraints import (
    EARLY,
    FOLLOWED,
    HIDDEN,
    NESTED,
    ORDINARY,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[5]


def ask(path: Path, message: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def verdict_on(
    path: Path, kind: TrialKind = TrialKind.LONG, **constraint: Any
) -> TrialVerdict | None:
    return TrialVerdict.from_answer(ask(path, message_of(kind, constraint)), kind)


def lengths(count: int) -> dict[str, Any]:
    """xgrammar takes seconds for each of these."""
    names = [f"p{i}" for i in range(count)]
    properties = {name: {"type": "string", "maxLength": 1000 + i} for i, name in enumerate(names)}
    return {"type": "object", "properties": properties, "required": names}


@contextmanager
def trials_of(
    backend: str, warm_python: str, small_model: Path
) -> Iterator[tuple[Path, psutil.Process]]:
    """The server of trials: its socket and its process."""
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        path = Path(folder, "trials")
        process = subprocess.Popen(
            [
                *(warm_python, "-m", "tests.deployments.engine.vllm.trial_server"),
                *(str(small_model), str(path), backend),
            ],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        pid, config = process.stdout.readline().decode().split()
        server = psutil.Process(int(pid))
        assert ask(path, SETUP + bytes.fromhex(config)) == b"{}"
        yield path, server
        process.stdin.close()
        process.wait()
        server.wait(60)  # it ends with the process that began it


@pytest.fixture(scope="module")
def begun(warm_python: str, small_model: Path) -> Iterator[tuple[Path, psutil.Process]]:
    with trials_of("auto", warm_python, small_model) as begun:
        yield begun


@pytest.fixture(scope="module", params=["auto", "guidance", "outlines"])
def of_a_backend(
    request: pytest.FixtureRequest, warm_python: str, small_model: Path
) -> Iterator[tuple[str, Path]]:
    with trials_of(request.param, warm_python, small_model) as (path, _):
        yield request.param, path


@pytest.fixture(scope="module")
def trials(begun: tuple[Path, psutil.Process]) -> Path:
    return begun[0]


@pytest.mark.parametrize(
    ("constraint", "backend"),
    [
        ({"choice": ["yes", "no"]}, "xgrammar"),
        ({"regex": "[a-z]{1,5}"}, "xgrammar"),
        ({"grammar": 'root ::= "a" | "b"'}, "xgrammar"),
        ({"json": {"type": "integer", "multipleOf": 3}}, "guidance"),
        ({"json": lengths(1)}, "xgrammar"),
    ],
)
def test_a_constraint_that_compiles_in_time_fits(
    trials: Path, constraint: dict[str, Any], backend: str
) -> None:
    verdict = verdict_on(trials, **constraint)
    assert verdict is not None
    assert verdict.fits
    assert verdict.backend == backend
    assert verdict.cpu_s < MOST_CPU_S


def test_a_trial_that_takes_too_long_is_ended_and_the_next_one_runs(trials: Path) -> None:
    verdict = verdict_on(trials, json=lengths(200))
    assert verdict is not None
    assert not verdict.fits
    assert verdict_on(trials, regex="[a-z]{1,5}") is not None


def test_a_quick_trial_ends_without_a_verdict_where_the_compile_takes_long(trials: Path) -> None:
    assert verdict_on(trials, TrialKind.QUICK, json=lengths(4)) is None
    verdict = verdict_on(trials, TrialKind.QUICK, regex="[a-z]{1,5}")
    assert verdict is not None
    assert verdict.fits


@pytest.fixture
def worker(
    begun: tuple[Path, psutil.Process],
) -> Iterator[tuple[socket.socket, psutil.Process]]:
    """That of a trial which takes ten seconds of idle cores, and what ends the trial."""
    path, server = begun
    while server.children():  # of the trial before
        time.sleep(0.01)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(message_of(TrialKind.IDLE, {"json": lengths(200)}))
        connection.shutdown(socket.SHUT_WR)
        while not (workers := server.children()):
            time.sleep(0.01)
        yield connection, workers[0]


def test_an_idle_priority_trial_runs_only_on_idle_cores(
    worker: tuple[socket.socket, psutil.Process],
) -> None:
    _, process = worker
    while os.sched_getscheduler(process.pid) != os.SCHED_IDLE:  # it reads its task first
        time.sleep(0.01)


def test_a_trial_ends_with_the_connection_that_asked_for_it(
    worker: tuple[socket.socket, psutil.Process],
) -> None:
    connection, process = worker
    connection.close()
    process.wait(60)


@pytest.mark.parametrize("kind", TrialKind)
def test_the_constraint_is_not_blamed_where_the_trial_did_not_begin(kind: TrialKind) -> None:
    """Its server ends with the engine, and may lack the memory for a worker."""
    with pytest.raises(ConnectionError, match="did not begin"):
        TrialVerdict.from_answer(b"", kind)


def test_a_constraint_that_vllm_refuses_is_left_to_vllm(trials: Path) -> None:
    verdict = verdict_on(trials, regex="(")
    assert verdict is not None
    assert verdict.fits


# A string with `maxLength` takes xgrammar some milliseconds per token, any other a tenth of one.
LENGTHS = ("lengths", "a long text")


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_schema_is_followed_with_room_to_the_bound(trials: Path, name: str) -> None:
    verdict = verdict_on(trials, json=ORDINARY[name])
    assert verdict is not None
    assert verdict.fits
    assert verdict.backend == "xgrammar"
    assert verdict.most_token_ms == TOKEN_MS
    assert name in LENGTHS or verdict.token_ms < TOKEN_MS / 4


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": NESTED},
        {"grammar": 'root ::= s\ns ::= "a" | s s\n'},
        # with two levels, a fast core stays just below the bound
        {"regex": "((a{0,100}){0,100}){0,100}"},
        {"regex": r"(\w+\s?)+"},
        {"json": {"properties": {"a": {"type": "string"}, "b": {"pattern": NESTED}}}},
    ],
)
def test_a_constraint_that_compiles_at_once_and_is_slow_to_follow_does_not_fit(
    trials: Path, constraint: dict[str, Any]
) -> None:
    verdict = verdict_on(trials, **constraint)
    assert verdict is not None
    assert not verdict.fits
    assert verdict.cpu_s < MOST_CPU_S
    assert "per token to follow the constraint" in verdict.refusal("the constraint")


@pytest.mark.parametrize("name", EARLY | FOLLOWED)
def test_each_backend_follows_a_hostile_constraint_in_time_or_it_does_not_fit(
    of_a_backend: tuple[str, Path], name: str
) -> None:
    backend, path = of_a_backend
    kind, constraint = (EARLY | FOLLOWED)[name]
    verdict = verdict_on(path, **{kind: constraint})
    assert verdict is not None
    # vLLM refuses some before a backend is known
    assert backend == "auto" or verdict.backend in ("", backend)
    if verdict.fits:
        assert verdict.token_ms <= TOKEN_MS


# These grow too slowly for a trial. The engine's own watch ends them (`test_mask_watch.py`).
GROWING = {"behind a star, without a group", "a hidden rule through x", "a hidden Lark rule"}


@pytest.mark.parametrize("name", [name for name in HIDDEN if name not in GROWING])
def test_a_slow_part_behind_an_unlikely_token_does_not_fit(trials: Path, name: str) -> None:
    kind, constraint, _ = HIDDEN[name]
    verdict = verdict_on(trials, **{kind: constraint})
    assert verdict is not None
    assert not verdict.fits, verdict
