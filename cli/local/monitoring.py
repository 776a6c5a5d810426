"""Prometheus and Alertmanager for a fleet on this machine.

Both are processes of the fleet's run, and listen on loopback only. Their data is in a folder that
is removed with the run: for long retention use a separate Prometheus. The fleet needs neither.
`antefix status` reports one that died, and `antefix up --with-prometheus` restarts both with their
data.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import yaml

from cli.local import processes
from cli.local.ports import LOOPBACK, free_ports, is_free
from common.errors import Problem
from observability import GENERATED

PROMETHEUS_PORT = 9090
ALERTMANAGER_PORT = 9093
SCRAPE_SECONDS = 5
EVALUATION_SECONDS = 15
KEPT = "30d"  # the longest window that the rules look back
KEPT_AT_MOST = "1GB"
START_SECONDS = 30.0
END_SECONDS = 5.0
PORT_ATTEMPTS = 5

# Without the environment's proxies: both are on this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ERROR = re.compile(r'\blevel=error\b.*?\berr="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


@dataclass(frozen=True)
class Programs:
    """Paths of the two programs."""

    prometheus: str
    alertmanager: str


@dataclass(frozen=True)
class Monitoring:
    """URLs, without a slash at the end."""

    prometheus: str
    alertmanager: str


def find_programs() -> Programs:
    """Return the programs on PATH. Raises Problem that names the missing ones."""
    prometheus = shutil.which("prometheus")
    # Debian names the program after its package.
    alertmanager = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
    if prometheus and alertmanager:
        return Programs(prometheus, alertmanager)
    found = {"prometheus": prometheus, "alertmanager": alertmanager}
    missing = " and ".join(name for name, path in found.items() if not path)
    raise Problem(
        f"--with-prometheus needs {missing} on PATH",
        "install both (Debian and Ubuntu: apt-get install --no-install-recommends prometheus "
        "prometheus-alertmanager; elsewhere from https://prometheus.io/download/)",
    )


def start(
    programs: Programs,
    folder: Path,
    logs: Path,
    metrics_url: str,
    run_id: str,
    generated: Path = GENERATED,
    *,
    ports: tuple[int, int] = (PROMETHEUS_PORT, ALERTMANAGER_PORT),
    within_s: float = START_SECONDS,
) -> Monitoring:
    """Return once both are ready, on these `ports` if they are free. Raises Problem with the last
    log line of the program that is not.
    """
    stop(run_id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("rules.yaml", "alertmanager.yaml"):
        shutil.copyfile(generated / name, folder / name)
    server = _Starter(folder, logs, run_id, within_s)
    try:
        alertmanager = server.start(
            "alertmanager",
            ports[1],
            lambda port: [
                programs.alertmanager,
                f"--config.file={folder / 'alertmanager.yaml'}",
                f"--storage.path={folder / 'alertmanager'}",
                "--cluster.listen-address=",  # no cluster; otherwise it listens to other machines
                *_listening(port),
            ],
        )
        (folder / "prometheus.yml").write_text(configuration(metrics_url, alertmanager))
        prometheus = server.start(
            "prometheus",
            ports[0],
            lambda port: [
                programs.prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--storage.tsdb.retention.time={KEPT}",
                f"--storage.tsdb.retention.size={KEPT_AT_MOST}",
                *_listening(port),
            ],
        )
    except BaseException:
        stop(run_id)
        raise
    return Monitoring(prometheus, alertmanager)


def running(run_id: str) -> set[str]:
    """Return which of "prometheus" and "alertmanager" this run has."""
    return {name for name, _ in _ours(run_id)}


def stop(run_id: str) -> None:
    """Stop only these two processes of the run. Their data survives a kill."""
    left = [process for _, process in _ours(run_id)]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=END_SECONDS)


def configuration(metrics_url: str, alertmanager: str) -> str:
    """Return Prometheus's configuration as YAML. The rules are in the same folder."""
    metrics = urlsplit(metrics_url)
    return yaml.safe_dump(
        {
            "global": {
                "scrape_interval": f"{SCRAPE_SECONDS}s",
                "scrape_timeout": f"{SCRAPE_SECONDS}s",
                "evaluation_interval": f"{EVALUATION_SECONDS}s",
            },
            "rule_files": ["rules.yaml"],
            "alerting": {
                "alertmanagers": [
                    {"static_configs": [{"targets": [urlsplit(alertmanager).netloc]}]}
                ]
            },
            "scrape_configs": [
                {
                    "job_name": "antefix",
                    "metrics_path": metrics.path,
                    "static_configs": [{"targets": [metrics.netloc]}],
                }
            ],
        },
        sort_keys=False,
    )


@dataclass(frozen=True)
class _Starter:
    folder: Path
    logs: Path
    run_id: str
    within_s: float

    def start(self, name: str, usual_port: int, command: Callable[[int], list[str]]) -> str:
        """Start the program and return its URL, on its usual port if that is free."""
        log_file = self.logs / f"{name}.log"
        said = ""
        for attempt in range(PORT_ATTEMPTS):
            usual = attempt == 0 and is_free(LOOPBACK, usual_port)
            port = usual_port if usual else free_ports(1)[0]
            said = self._run(command(port), port, log_file)
            if not said:
                return _url(port)
            # A free port can be taken before it is bound.
            if "address already in use" not in said:
                break
        raise Problem(f"{name} does not start: {said}", f"see {log_file}")

    def _run(self, command: list[str], port: int, log_file: Path) -> str:
        """Return the program's last log line; empty once it is ready."""
        with log_file.open("ab") as log:
            begin = log.tell()
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env={**os.environ, **processes.marker(self.run_id)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # `up` handles Ctrl-C
                )
            except OSError as error:
                return f"{command[0]} cannot be run: {error.strerror or error}"
        deadline = time.monotonic() + self.within_s
        while process.poll() is None and time.monotonic() < deadline:
            if _listens(process.pid, port) and _is_ready(port):
                return ""
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            process.wait()
            return f"not ready within {self.within_s:.0f} s"
        return _last_words(log_file.read_bytes()[begin:].decode(errors="replace"))


def _listening(port: int) -> list[str]:
    return [f"--web.listen-address={LOOPBACK}:{port}", f"--web.external-url={_url(port)}"]


def _url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


def _ours(run_id: str) -> Iterator[tuple[str, psutil.Process]]:
    for process in processes.processes(run_id):
        with contextlib.suppress(psutil.Error):
            name = process.name().removeprefix("prometheus-")
            if name in ("prometheus", "alertmanager"):
                yield name, process


def _listens(pid: int, port: int) -> bool:
    """Return whether this process listens on the port, and not another fleet's."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def _is_ready(port: int) -> bool:
    try:
        with _opener.open(f"{_url(port)}/-/ready", timeout=2.0):
            return True
    except OSError:
        return False


def _last_words(log: str) -> str:
    """Return why it ended: the first error in the log, since later ones are its consequences."""
    if found := _ERROR.search(log):
        return found[1].replace('\\"', '"')
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "it logged nothing"
