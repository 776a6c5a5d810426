"""TCP sockets that detect the loss of the other machine.

A process that dies closes its connections. A machine that loses power or its network closes
nothing. TCP then waits forever for an answer, or 15 minutes after it has sent data. The kernel of
the other machine answers TCP's probes even when its process is busy. So probes, unlike a silent
load board, never mistake a slow engine for a lost one.
"""

from __future__ import annotations

import socket
from typing import Any

# Limit for connecting to a machine that does not answer.
CONNECT_TIMEOUT_S = 3.0
# An open connection breaks VANISHED_AFTER_S after the other machine's last packet.
PROBE_AFTER_S = 2
PROBE_PERIOD_S = 1
PROBES = 3
VANISHED_AFTER_S = PROBE_AFTER_S + PROBE_PERIOD_S * PROBES


def impatient_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for `socket_factory` of aiohttp. It breaks if its peer's machine is lost."""
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS names the first TCP_KEEPALIVE and lacks the last; no cluster runs on it
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_PERIOD_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        # the kernel sends probes only on idle connections; this limit is for unacknowledged data
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_S * 1000)
    return sock
