"""The settings that a gateway uses. New settings replace all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet


class InForce:
    """The fleet in use. `fleet` is set before the gateway listens.

    `refused`: why newer settings were rejected; empty if they are in use.
    """

    fleet: Fleet

    def __init__(self) -> None:
        self.refused = ""


def given_fleet(settings: Mapping[str, Any]) -> Fleet:
    """Return the fleet that Ray Serve's settings describe. Raises FleetError if invalid."""
    text = yaml.safe_dump(dict(settings), sort_keys=False)
    return parse_fleet(text, "settings", check_engine_args=False)
