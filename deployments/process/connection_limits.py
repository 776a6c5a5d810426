"""Limits of one HTTP connection of a client, and of their number."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

MOST_CONNECTIONS = 8192
# Open files of a process besides its connections to clients and engines.
OTHER_FILES = 256


def _connections() -> int:
    """Return the maximum of open connections, if each may need another to an engine.

    Raises the process's limit of open files if possible: on many systems it starts at 1,024.
    """
    wanted = 2 * MOST_CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    may_open = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < may_open:
        resource.setrlimit(resource.RLIMIT_NOFILE, (may_open, hard))
    return max(64, (may_open - OTHER_FILES) // 2)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of a request line with its headers, of a body's speed, and of a server's
    `connections`.

    `head_s` starts with the connection, or with the first byte of its next request. Once a body is
    `body_grace_s` old, it must have sent `body_bytes_per_s` during the last `body_grace_s`. Earlier
    bytes do not count, so a fast start does not allow a pause.

    After a refusal, the server still reads for `refused_s`: a client that still sends would lose
    the answer with the connection. Meanwhile the client takes the last bytes, or the connection
    ends after `untaken_s` without progress. `pipelined` requests may wait for the answer to an
    earlier one.
    """

    head_bytes: int = 32 * 1024
    headers: int = 100
    head_s: float = 10.0
    body_bytes_per_s: float = 1000.0
    body_grace_s: float = 10.0
    connections: int = field(default_factory=_connections)
    pipelined: int = 16
    refused_s: float = 2.0
    untaken_s: float = 10.0
    look_period_s: float = 1.0
