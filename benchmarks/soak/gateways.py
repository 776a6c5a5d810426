"""What the gateways of a fleet hold in memory, read in their Ray actors from outside.

    python -m benchmarks.soak.gateways ADDRESS

connects to the Ray there. For each line on stdin it writes the items that gateways hold, as a line
of JSON; null where one does not answer.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import cloudpickle

from benchmarks.soak import held_items
from cli.local import processes, ray_head
from cli.local.home import Home
from deployments.fleet.applications import GATEWAYS_DEPLOYMENT

NAMESPACE = "serve"
TIMEOUT_S = 10.0
# The gateway's own thread may change a container while this one walks it.
WALKS = 20


@contextmanager
def held_by_gateways(home: Home) -> Iterator[Callable[[], Counter[str]]]:
    """A function that returns what all gateways of the fleet in `home` hold together, as
    `held_items` names it. It raises OSError where one does not answer."""
    state = home.state()
    assert state is not None
    inherited = ray_head.environment(home, state.run_id)
    # without the fleet's marker: this process is not one of those that are counted
    env = {key: inherited[key] for key in inherited.keys() - processes.marker(state.run_id).keys()}
    with subprocess.Popen(
        [sys.executable, "-m", __name__, state.ray_address],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        asks, answers = child.stdin, child.stdout

        def held() -> Counter[str]:
            print(file=asks, flush=True)
            if (found := json.loads(answers.readline() or "null")) is None:
                raise OSError("a gateway does not report what it holds")
            return Counter(found)

        try:
            yield held
        finally:
            asks.close()


def _held() -> Counter[str] | None:
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    gateways = [name for name in names if f"#{GATEWAYS_DEPLOYMENT}#" in name]
    try:
        actors: list[Any] = [ray.get_actor(name, NAMESPACE) for name in gateways]
        asked = [actor.__ray_call__.remote(_held_by) for actor in actors]
        found = Counter[str]()
        for of_one in ray.get(asked, timeout=TIMEOUT_S):
            found.update(of_one)  # a sum would omit counts of 0
        return found
    except (ValueError, ray.exceptions.RayError) as error:
        print(f"a gateway does not report what it holds: {error}", file=sys.stderr)
        return None


def _held_by(replica: Any) -> Counter[str]:
    """Runs in the process of Ray Serve's replica, whose callable is the gateway."""
    gateway = replica._replica_impl._user_callable_wrapper.user_callable
    for _ in range(WALKS - 1):
        try:
            return held_items.held_items(gateway)
        except RuntimeError:  # a container changed its size
            continue
    return held_items.held_items(gateway)


def main(ray_address: str, written: Any) -> None:
    # gateways cannot import benchmarks
    for module in (held_items, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    # otherwise Ray replaces the loopback address with the machine's, where nothing listens
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    ray.init(ray_address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    for _ in sys.stdin:
        print(json.dumps(_held()), file=written, flush=True)


if __name__ == "__main__":
    to_the_soak = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    main(sys.argv[1], to_the_soak)
