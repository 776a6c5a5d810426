"""TCP ports of this machine that are free now.

Another process may take one before it is used, so whoever uses one tries again with another, or
holds it until it is used.
"""

import errno
import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"
ANY_ADDRESS = ("0.0.0.0", "::")


def free_ports(count: int) -> list[int]:
    """`count` different ports, free on loopback."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [sock.getsockname()[1] for sock in sockets]


def held(host: str, port: int = 0) -> socket.socket:
    """A socket that keeps a port, any free one for 0, until it is closed.

    Nobody else is given it by chance meanwhile, yet a server that binds with SO_REUSEADDR may
    listen there: socket(7). Raises OSError, of EADDRINUSE when something listens there.
    """
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Connections of an earlier server that linger in TIME_WAIT are no obstacle either.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
    except BaseException:
        holder.close()
        raise
    return holder


def is_free(host: str, port: int) -> bool:
    """False when something listens there. Raises OSError when `host` is not this machine's."""
    try:
        held(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def own_address() -> str:
    """The address by which other machines reach this one; empty where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # chooses a route, and sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])
