"""The program that tests run in the place of Python where a module imports vLLM."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("client.py")
# Of an engine's start, what takes seconds.
VLLM = (
    "deployments.engine.vllm.adapter",
    "deployments.engine.vllm.watch.measured_schedulers",
    "deployments.engine.vllm.offline.offline",
    "deployments.engine.vllm.plugin",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
)


@contextmanager
def running(*modules: str) -> Iterator[str]:
    """Start a Python that imports `modules`, and yield the path of a program that forks it.

    The program takes `-m MODULE` or `-c CODE`, as Python does.
    """
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        socket, program = Path(folder, "socket"), Path(folder, "python")
        command = shlex.join([sys.executable, "-IS", str(CLIENT), str(socket)])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(stat.S_IRWXU)
        with subprocess.Popen(
            [sys.executable, "-m", "tests.warm_python.server", str(socket), *modules],
            cwd=REPOSITORY,
            # what is read at import, alike for all: models are in local folders
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONHASHSEED": "0",
                "HF_HUB_OFFLINE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline(), "the warm Python cannot listen"
            try:
                yield str(program)
            finally:
                server.stdin.close()
