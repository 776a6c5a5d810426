"""The Kubernetes that ../shared/cluster starts on this machine: one for a session of the tests.

It is started in a folder of `.cache` and taken down again, and then nothing may be left of it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.local.ports import free_ports
from tests.helm.helm import ROOT, kubectl
from tests.programs import CLUSTER_SCRIPT

FOLDER = (ROOT / ".cache" / "cluster").resolve()
# Its own limits are one or two minutes for each part; existing parts stay when it goes on.
TRIES = 3


class NotStarted(Exception):
    """What the script said."""


class AnotherRuns(NotStarted):
    """There can be one on a machine."""


@functools.cache
def can_be_had() -> bool:
    """Whether this is root with the script, and allowed what it does."""
    if os.getuid() or not CLUSTER_SCRIPT.exists() or not os.access("/sys/fs/cgroup", os.W_OK):
        return False
    namespaces = ["unshare", "--net", "--mount", "true"]
    return not subprocess.run(namespaces, capture_output=True, check=False).returncode


@contextmanager
def own_cluster() -> Iterator[str]:
    """Its kubeconfig. Raises NotStarted."""
    others = networks_of_pods()
    try:
        start()
        yield str(FOLDER / "kubeconfig")
    except AnotherRuns:
        raise  # removing this one would remove what both go by
    except BaseException:
        script("down")
        raise
    script("down")
    # the script knows its pods' by their route, which has gone where the link went first
    for name in networks_of_pods() - others:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    left_behind = leftovers()
    assert not left_behind, f"the cluster left {left_behind}"
    shutil.rmtree(FOLDER)


def start() -> None:
    for left in reversed(range(TRIES)):
        try:
            script("up", "1")
            return
        except NotStarted as error:
            if "take it down first" in str(error):
                raise AnotherRuns(str(error)) from error
            if not left:
                raise


def install_kuberay(version: str, labels: str) -> None:
    """`labels`: chart, as its Helm chart's pods have, or kustomization."""
    script("kuberay", version, *(["chart"] if labels == "chart" else []))


def script(command: str, *arguments: str) -> str:
    """Raises NotStarted."""
    # one port for the life of the cluster
    FOLDER.mkdir(parents=True, exist_ok=True)
    port = FOLDER / "port"
    if not port.exists():
        port.write_text(str(free_ports(1)[0]))
    done = subprocess.run(
        [str(CLUSTER_SCRIPT), command, str(FOLDER), *arguments],
        env=os.environ | {"KUBECTL": kubectl(), "PORT": port.read_text()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotStarted(f"{CLUSTER_SCRIPT} {command}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def networks_of_pods() -> set[str]:
    return {path.name for path in Path("/run/netns").glob("cni-*")}


def leftovers() -> list[str]:
    """Mounts, cgroups, network namespaces and processes of the cluster that are still there."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    left = [mount for mount in mounts if Path(mount).is_relative_to(FOLDER)]
    for pattern in ("sys/fs/cgroup/afx-node-*", "sys/fs/cgroup/*/afx-node-*", "run/netns/afx-*"):
        left += map(str, Path("/").glob(pattern))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:  # it has just ended
            continue
        if f"AFX_CLUSTER={FOLDER}\0".encode() in words:
            left.append(words.partition(b"\0")[0].decode())
    return left
