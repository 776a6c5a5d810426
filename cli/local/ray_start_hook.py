"""What `ray start` has no option for. Named in RAY_START_HOOK, which Ray calls before starting."""

from __future__ import annotations

from typing import Any

from cli.local.ports import LOOPBACK


def keep_to_loopback(params: Any, head: bool) -> None:
    """Ray replaces 127.0.0.1 with the machine's outer address and then listens everywhere; given
    loopback after that, all of it listens on loopback alone, and a change of network is no harm.
    """
    params.node_ip_address = LOOPBACK
    # Ray Client's server: a port of its own that nothing here uses.
    params.ray_client_server_port = None
