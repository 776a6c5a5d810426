"""Actions of `antefix k8s accept` in a release: run commands in pods, delete a pod, forward a port.

All of them use kubectl, with the user's rights. `k8s.client.cluster` only reads.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import Problem

_COMMAND_S = 120.0
_FORWARDED_WITHIN_S = 30.0


class Kubectl:
    """kubectl for one namespace. Raises Problem if kubectl is not installed."""

    def __init__(
        self, namespace: str, kubeconfig: str | None = None, context: str | None = None
    ) -> None:
        program = shutil.which("kubectl")
        if program is None:
            raise Problem(
                "kubectl, which runs commands in the release's pods, is not on PATH",
                "install it: https://kubernetes.io/docs/tasks/tools/",
            )
        given = {"--kubeconfig": kubeconfig, "--context": context, "--namespace": namespace}
        options = (word for name, value in given.items() if value for word in (name, value))
        self._command = [program, *options]

    def python(self, pod: str, container: str, program: str, *arguments: str) -> str:
        """Return the output of `program`, a text, in the pod. Raises Problem."""
        return self._run(
            "exec", pod, "--container", container, "--", "python", "-c", program, *arguments
        )

    def delete(self, pod: str) -> None:
        """Delete the pod, which drains first. It does not wait. Raises Problem."""
        self._run("delete", "pod", pod, "--wait=false")

    @contextmanager
    def forwarded(self, service: str, port: int) -> Iterator[str]:
        """Yield the local address that leads to one pod of the service. Raises Problem."""
        command = [*self._command, "port-forward", f"service/{service}", f":{port}"]
        with tempfile.NamedTemporaryFile() as said:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )
            try:
                yield f"http://127.0.0.1:{_port_of(process, Path(said.name))}"
            finally:
                process.terminate()
                process.wait()

    def _run(self, *arguments: str) -> str:
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_COMMAND_S,
            )
        except subprocess.TimeoutExpired:
            raise _failed(arguments[0], f"no output within {_COMMAND_S:g} s") from None
        if done.returncode:
            raise _failed(arguments[0], done.stderr)
        return done.stdout


def _port_of(process: subprocess.Popen[bytes], said: Path) -> int:
    deadline = time.monotonic() + _FORWARDED_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"127\.0\.0\.1:(\d+) ->", said.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise _failed("port-forward", said.read_text())


def _failed(verb: str, words: str) -> Problem:
    last = next(reversed(words.strip().splitlines()), "no error message")
    return Problem(
        f"kubectl {verb} failed: {last}", "check that your credentials allow it, and try again"
    )
