"""Programs that a benchmark starts: what they say, the CPU time they use, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

STOP_S = 20.0
LAST_WORDS = 2000


class Launched:
    """`asked`: a line of JSON for the stdin of an Antefix module. It ends when that is closed, and
    says one line of JSON when it is ready. All its other output goes to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        asked: Any = None,
    ) -> None:
        self.log = log
        self.says_when_ready = asked is not None
        with log.open("a") as lines:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.says_when_ready else lines,
                stderr=lines,
                env={**os.environ, **(environment or {})},
                # Ctrl-C is the benchmark's to act on
                start_new_session=True,
            )
        if self.says_when_ready:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # `said` reports why
                self._process.stdin.write(json.dumps(asked).encode() + b"\n")
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def said(self, within_s: float) -> Any:
        """Return its JSON. Raises RuntimeError, with the end of its log, when there is none."""
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], within_s)
        line = pipe.readline() if ready else b""
        if not line.endswith(b"\n"):
            raise RuntimeError(self.failure())
        return json.loads(line)

    def until_healthy(self, url: str, within_s: float) -> None:
        """Until `url`/health answers. Raises RuntimeError, with the end of its log, when that takes
        longer."""
        until = time.monotonic() + within_s
        while time.monotonic() < until and not self.has_ended:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                return
            time.sleep(0.5)
        raise RuntimeError(self.failure())

    def failure(self) -> str:
        state = "ended" if self.has_ended else "does not get ready"
        return f"{self.log.stem} {state}:\n{self.log.read_text()[-LAST_WORDS:]}"

    def stop(self, within_s: float = STOP_S) -> None:
        """It and all that it has started. It is killed if it does not end `within_s`."""
        tree = _tree(self.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self.says_when_ready:
            self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def cpu_seconds(pids: Iterable[int], without: Sequence[str] = ()) -> float:
    """Of these processes and all that they have started, those that have ended included, except
    those that are called as one of `without`."""
    used = 0.0
    for process in (one for pid in pids for one in _tree(pid)):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            if without and process.cmdline()[0].startswith(tuple(without)):
                continue
            of = process.cpu_times()
            used += of.user + of.system + of.children_user + of.children_system
    return used


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
