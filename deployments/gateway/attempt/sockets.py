"""TCP that notices when the other machine is gone.

A process that dies closes its connections; a machine that loses power or its network closes
nothing, and TCP waits for it: for ever when it waits for an answer, a quarter of an hour when
it has sent something. The kernel answers for a process that is merely busy, so asking it, unlike
a silent load board, never takes a slow engine for a lost one.
"""

from __future__ import annotations

import socket
from typing import Any

# A connection to a machine that does not answer at all.
CONNECT_TIMEOUT_S = 3.0
# An open connection: noticed this long after the last sign of life.
PROBE_AFTER_S = 2
PROBE_PERIOD_S = 1
PROBES = 3
VANISHED_AFTER_S = PROBE_AFTER_S + PROBE_PERIOD_S * PROBES


def impatient_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for aiohttp's `socket_factory` that breaks when its peer's machine is gone."""
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS calls the first TCP_KEEPALIVE and lacks the last; there is no cluster on it.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_PERIOD_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        # Probes are sent only while nothing else is; this is for bytes that are not confirmed.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_S * 1000)
    return sock
