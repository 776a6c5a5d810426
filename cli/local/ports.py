"""Free TCP ports of this machine.

Another process may take a free port before it is used. Callers retry with another port, or hold it
until they use it.
"""

import errno
import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"
ANY_ADDRESS = ("0.0.0.0", "::")


def free_ports(count: int) -> list[int]:
    """Return `count` different ports, free on loopback."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [sock.getsockname()[1] for sock in sockets]


def held(host: str, port: int = 0) -> socket.socket:
    """Return a socket that reserves a port until it is closed; 0 reserves any free one.

    No other process gets the port by chance, but a server that binds with SO_REUSEADDR can listen
    there: socket(7). Raises OSError, with EADDRINUSE if another process listens there.
    """
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Connections of an earlier server in TIME_WAIT do not prevent the bind either.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
    except BaseException:
        holder.close()
        raise
    return holder


def is_free(host: str, port: int) -> bool:
    """Return false if a process listens there. Raises OSError if `host` is not this machine's."""
    try:
        held(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def own_address() -> str:
    """Return the address by which other machines reach this one; empty without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # chooses a route without sending anything
        except OSError:
            return ""
        return str(probe.getsockname()[0])
