"""A Ray of a test's own."""

from __future__ import annotations

from typing import Any

import ray

ATTEMPTS = 3
# What Ray says of a raylet, and of a GCS, that did not come up in time.
SLOW = ("timed out during startup", "Timed out waiting for file")


def start_ray(**options: Any) -> None:
    """`ray.init` for tests. Raises what it raises the last time.

    Ray waits 30 s for its GCS and for its raylet (`ray._private.node.Node`), which on a busy
    machine is not always enough; for the raylet the wait cannot be longer.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, **options)
            return
        except Exception as error:
            if attempt == ATTEMPTS or not any(slow in str(error) for slow in SLOW):
                raise
            ray.shutdown()
