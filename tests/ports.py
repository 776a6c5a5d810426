"""Ports for the servers of tests, which no other process gets before they listen, or between
two."""

from __future__ import annotations

import random
import socket
from collections import deque

from cli.local.ports import LOOPBACK, held

# As many sockets are open at once.
KEPT = 200
# Above what most programs use, and below what the system gives by itself, with their buses.
_OF_CLUSTERS = range(12_000, 22_000)
_kept: deque[socket.socket] = deque()


def free_ports(count: int) -> list[int]:
    """`count` different ports, free on loopback, for servers that bind with SO_REUSEADDR, as all
    of Antefix do: until then, and when one of them has ended, too, the ports are the test's."""
    return [_keep(held(LOOPBACK)) for _ in range(count)]


def cluster_ports(count: int) -> list[int]:
    """`count` ports of which the one 10,000 above is free, too: there shards of a Redis Cluster
    speak to each other."""
    found: list[int] = []
    for port in random.sample(_OF_CLUSTERS, len(_OF_CLUSTERS)):
        try:
            bus = held(LOOPBACK, port + 10_000)
        except OSError:
            continue
        try:
            found.append(_keep(held(LOOPBACK, port)))
        except OSError:
            bus.close()
            continue
        _keep(bus)
        if len(found) == count:
            break
    return found


def _keep(socket_: socket.socket) -> int:
    _kept.append(socket_)
    while len(_kept) > KEPT:
        _kept.popleft().close()
    port: int = socket_.getsockname()[1]
    return port
