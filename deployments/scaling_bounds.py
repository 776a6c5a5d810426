"""Bounds of a pool's number of replicas, from Ray Serve's configuration.

The autoscaler reads the fleet's settings from Redis, where gateways write them. They are signed,
but engines have the key as well. So the number of replicas stays within the bounds of the fleet
with which the controller started, until Ray Serve itself confirms other bounds: an operator's
change reaches Ray Serve first, as the gateways' `user_config`. A pool that already has more
replicas, or fewer, keeps them: the bounds limit changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from deployments.fleet.applications import GATEWAYS_APPLICATION, GATEWAYS_DEPLOYMENT
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool

logger = logging.getLogger("ray.serve")

ANSWER_S = 5.0


@dataclass(frozen=True)
class ScalingBounds:
    """The minimum and maximum number of replicas, including warm ones."""

    least: int
    most: int

    def clipped(self, target: int, current: int) -> int:
        """Return the target within the bounds, which contain the current number."""
        return max(min(self.least, current), min(max(self.most, current), target))


def bounds_of(pool: Pool) -> ScalingBounds:
    scaled = pool.autoscaling
    least = pool.first_replicas if scaled is None else scaled.min_replicas
    return ScalingBounds(least, pool.most_replicas)


def given_to_serve(details: Mapping[str, Any], pool: str) -> ScalingBounds | None:
    """Return the bounds in Ray Serve's report (`ServeInstanceDetails`).

    None: it has no gateways, or unusable settings.
    """
    try:
        gateways = details["applications"][GATEWAYS_APPLICATION]["deployments"]
        given = gateways[GATEWAYS_DEPLOYMENT]["deployment_config"]["user_config"]
        return bounds_of(Fleet.model_validate(given).pools[pool])
    except (KeyError, TypeError, ValueError):
        return None


def ask_serve(pool: str) -> ScalingBounds | None:
    """Return `given_to_serve` now, within ANSWER_S; None also if Ray Serve does not answer."""
    if not ray.is_initialized():
        return None
    try:
        controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
        asked: Any = controller.get_serve_instance_details.remote()
        return given_to_serve(ray.get(asked, timeout=ANSWER_S), pool)
    except (RayError, ValueError) as error:  # ValueError: there is no controller
        logger.warning("failed to read the replica limits of %s from Ray Serve: %s", pool, error)
        return None
