"""The settings that a gateway serves by, replaced all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet


class InForce:
    """`fleet` is there from the first settings on, before the gateway listens. `refused`: why newer
    settings are not in force; empty where they are."""

    fleet: Fleet

    def __init__(self) -> None:
        self.refused = ""


def given_fleet(settings: Mapping[str, Any]) -> Fleet:
    """The fleet that Ray Serve's settings describe. Raises FleetError."""
    text = yaml.safe_dump(dict(settings), sort_keys=False)
    return parse_fleet(text, "settings", check_engine_args=False)
