"""Drain a node without losing a request: a pod's preStop, before its SIGTERM.

    python -m deployments.node_drain --after 10 --within 600

Engines leave routing at once and finish their requests. Gateways continue for `--after` seconds,
until every load balancer has removed them, then accept no new connections. They also report the
drain to Ray, so that Ray Serve starts replacements on other nodes first. The command returns when
no process of the node has requests left, or after `--within` seconds. With `--head` it waits for
the other nodes of the cluster instead, while they drain: without the head, they could not finish.

It communicates with the node's processes through the files of `deployments.process.node_drain`.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from deployments.process.node_drain import PERIOD_S, ask, folder_of, nodes

# When a cluster is deleted, the kubelet ends all pods within this time.
OTHERS_BEGIN_S = 10.0
TIMEOUT_S = 3.0


def drain(node_id: str | None, after_s: float, within_s: float) -> bool:
    """Return whether all requests ended in time. Without a node's id: those of this machine or
    pod."""
    ends = time.monotonic() + within_s
    folders = [folder_of(node_id)] if node_id else list(nodes().glob("*"))
    for folder in folders:
        ask(folder, after_s, within_s)
    while busy := [said for folder in folders for said in _said(folder) if said != "0"]:
        if time.monotonic() >= ends:
            print(f"{len(busy)} processes still have requests after {within_s:g} s")
            return False
        time.sleep(PERIOD_S)
    return True


def wait_for_the_others(within_s: float) -> None:
    """Return when no other node of the cluster drains any more."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        # called from the start: the first call imports Ray, which is slow on a busy node
        others_drain = _others_drain()
        if time.monotonic() - began > OTHERS_BEGIN_S and not others_drain:
            return
        time.sleep(1.0)


def _said(folder: Path) -> Iterator[str]:
    """Yield the report of each living process."""
    for path in folder.glob("[0-9]*"):
        if path.suffix or not psutil.pid_exists(int(path.name)):
            continue
        with contextlib.suppress(FileNotFoundError):
            yield path.read_text()


def _others_drain() -> bool:
    """Return whether another living node drains. False also if Ray no longer answers."""
    from ray._private import services
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        gcs = GcsClient(address=services.canonicalize_bootstrap_address_or_die("auto"))
        draining = gcs.get_draining_nodes(timeout=TIMEOUT_S)
        nodes = gcs.get_all_node_info(timeout=TIMEOUT_S)
    except Exception as error:
        print(f"Ray does not answer: {error}")
        return False
    others = [node for node_id, node in nodes.items() if node_id.hex() in draining]
    with ThreadPoolExecutor() as each:
        return any(each.map(_listens, others))


def _listens(node: Any) -> bool:
    """Return whether the node listens. Ray notices a killed node only by health checks, a minute
    later."""
    at = (node.node_manager_address, node.node_manager_port)
    with contextlib.suppress(OSError), socket.create_connection(at, timeout=TIMEOUT_S):
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Drain this node before it is stopped.")
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--within", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--node-id", help="Ray address; default: the Ray on this node")
    parser.add_argument("--head", action="store_true")
    asked = parser.parse_args()
    if asked.head:
        wait_for_the_others(asked.within)
    else:
        drain(asked.node_id, asked.after, asked.within)


if __name__ == "__main__":
    main()
