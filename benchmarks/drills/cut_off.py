"""Cut a process off from all others, as on a machine that has lost its network.

nft drops packets from it and for it, without a reset. Its children still reach it, and so does the
raylet of its node, by a Unix socket. Open connections are found by their ports, new ones by a
control group (net_cls).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from common.errors import Problem

# Unlikely in any other control group.
CLASS_ID = 0x0AF10001


@contextmanager
def cut_off(process: psutil.Process) -> Iterator[None]:
    """Raises Problem where this machine does not allow it."""
    if os.geteuid() or not shutil.which("nft"):
        raise Problem(
            "cutting a process off takes root and nft",
            "run it as root, on a machine that has nftables",
        )
    children = {port for child in process.children(recursive=True) for port, _ in _ports(child)}
    table = f"antefix_drill_{os.getpid()}"
    with ExitStack() as undo:
        groups = undo.enter_context(_net_cls())
        group = groups / table
        group.mkdir()
        undo.callback(group.rmdir)
        (group / "net_cls.classid").write_text(str(CLASS_ID))
        _nft(rules(table, _ports(process), children))
        undo.callback(_nft, f"delete table inet {table}")
        undo.callback(_leave, group)
        _join(group, process.pid)
        yield


def rules(table: str, ports: Iterable[tuple[int, int]], children: Collection[int]) -> str:
    """For nft. `ports`: of each connection, the process's and the other's (0: it listens)."""
    opened, own = list(ports), _set(sorted(children))
    listening = sorted({mine for mine, other in opened if not other})
    pairs = [f"{mine} . {other}" for mine, other in sorted({*opened}) if other]
    lines = [f"table inet {table} {{"]
    for chain, mine, other in (("input", "dport", "sport"), ("output", "sport", "dport")):
        lines.append(f"chain {chain} {{ type filter hook {chain} priority 0; policy accept;")
        if children:
            lines += [f"tcp sport {own} accept", f"tcp dport {own} accept"]
        if listening:
            lines.append(f"tcp {mine} {_set(listening)} drop")
        if pairs:
            lines.append(f"tcp {mine} . tcp {other} {_set(pairs)} drop")
        if chain == "output":
            lines.append(f"meta cgroup {CLASS_ID} drop")
        lines.append("}")
    return "\n".join([*lines, "}"])


def _set(elements: Iterable[object]) -> str:
    return f"{{ {', '.join(map(str, elements))} }}"


def _ports(process: psutil.Process) -> list[tuple[int, int]]:
    with suppress(psutil.NoSuchProcess):
        return [
            (at.laddr.port, at.raddr.port if at.raddr else 0)
            for at in process.net_connections("tcp")
            if at.status in (psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED)
        ]
    return []


@contextmanager
def _net_cls() -> Iterator[Path]:
    """The folder of the control groups."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup" and "net_cls" in options.split(","):
            yield Path(folder)
            return
    folder = tempfile.mkdtemp(prefix="afx-net-cls-")
    try:
        mount = ["mount", "-t", "cgroup", "-o", "net_cls", "none", folder]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            raise Problem(
                "this kernel has no control groups that show whose packets these are (net_cls)",
                "run it on a Linux with CONFIG_CGROUP_NET_CLASSID",
            )
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        Path(folder).rmdir()


def _join(group: Path, pid: int) -> None:
    with suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def _leave(group: Path) -> None:
    """With all processes in it, those started meanwhile included."""
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            _join(group.parent, int(pid))


def _nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
