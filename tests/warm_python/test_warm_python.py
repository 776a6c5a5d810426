"""What runs in a fork of the warm Python is as it would be in a new process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until
from tests.warm_python import program


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    with program.running("decimal") as path:
        yield path


def test_a_program_has_the_arguments_streams_environment_and_folder_of_its_client(
    python: str, tmp_path: Path
) -> None:
    code = (
        "import os, sys\n"
        "print(sys.argv[1], sys.stdin.read(), os.environ['ASKED'], os.getcwd(), __name__)\n"
        "print('said', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [python, "-c", code, "one"],
        input="two",
        env={**os.environ, "ASKED": "three"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["one", "two", "three", str(tmp_path), "__main__"]
    assert done.stderr == "said\n"


def test_a_module_is_run_by_its_name(python: str) -> None:
    done = subprocess.run(
        [python, "-m", "json.tool", "--compact"],
        input="[1, 2]",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[1,2]\n"


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("1 / 0", 1), ("import os; os._exit(3)", 3)]
)
def test_the_client_returns_the_exit_status_of_the_program(
    python: str, code: str, status: int
) -> None:
    assert subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == (
        status
    )


def test_the_needed_modules_are_already_imported(python: str) -> None:
    code = "import sys; print('decimal' in sys.modules)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def started(python: str, code: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A client, and the process ids that its program prints first."""
    client = subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    return client, [int(pid) for pid in client.stdout.readline().split()]


async def ended(client: subprocess.Popen[str], pids: list[int]) -> None:
    assert pids
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert client.stdout is not None
    client.stdout.close()
    assert client.wait() != 0


async def test_the_program_and_its_children_are_killed_with_the_client(python: str) -> None:
    code = (
        "import os, time\n"
        "child = os.fork()\n"
        "if child: print(os.getpid(), child, flush=True)\n"
        "time.sleep(600)\n"
    )
    client, pids = started(python, code)
    client.kill()
    await ended(client, pids)


async def test_the_program_is_killed_when_the_warm_python_ends() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with program.running() as python:
        client, pids = started(python, code)
    await ended(client, pids)
