"""Settings for which `ray start` has no option. RAY_START_HOOK names this module, and Ray calls it
before it starts."""

from __future__ import annotations

from typing import Any

from cli.local.ports import LOOPBACK


def keep_to_loopback(params: Any, head: bool) -> None:
    """Make Ray listen on loopback only.

    Ray replaces 127.0.0.1 with the machine's external address and then listens on all interfaces.
    With loopback set after that, all of Ray listens on loopback only, and a change of network does
    no harm.
    """
    params.node_ip_address = LOOPBACK
    # Ray Client's server has a separate port, which nothing here uses.
    params.ray_client_server_port = None
