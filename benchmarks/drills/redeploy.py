"""Gives Ray Serve a pool of the fleet that runs with another `env`, which is cold:

    python -m benchmarks.drills.redeploy

One JSON object on stdin: {"address", "fleet", "pool", "engine_secret", "redis_url"}. A process of
its own, in the environment of the fleet's Ray, as `cli.local.serve_driver` is.
"""

from __future__ import annotations

import json
import sys

import ray
from ray import serve

from cli.local.serve_driver import connect
from deployments.app import applications
from deployments.fleet.applications import application_of
from deployments.fleet.fleet import Fleet
from deployments.gateway.gateway import Secrets


def main() -> None:
    told = json.load(sys.stdin)
    fleet = Fleet.model_validate_json(json.dumps(told["fleet"]))
    secrets = Secrets({}, told["engine_secret"], told["redis_url"])
    name = application_of(told["pool"])
    connect(told["address"], local=True)
    target = serve.RunTarget(
        target=applications(fleet, secrets)[name], name=name, route_prefix=None
    )
    serve.run_many(
        [target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
