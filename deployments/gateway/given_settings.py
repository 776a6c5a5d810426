"""The settings that Ray Serve gives a gateway, as the fleet they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet


def readable(settings: Mapping[str, Any]) -> Fleet:
    """Raises FleetError."""
    text = yaml.safe_dump(dict(settings), sort_keys=False)
    return parse_fleet(text, "settings", check_engine_args=False)
