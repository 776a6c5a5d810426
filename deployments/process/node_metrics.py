"""Join a process's metrics to those of its node, and serve them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from deployments.fleet.fleet import MetricsSettings
from observability.metrics import exporter, metric_files

logger = logging.getLogger("ray.serve")


def join(fleet: str, at: MetricsSettings, count: Callable[[Path], None]) -> None:
    """Join, before the process creates any metric.

    `count` comes from `observability.metrics.metric_files`.

    If it fails, the process counts for itself only, and continues.
    """
    try:
        folder = metric_files.node_folder(fleet)
        count(folder)
    except OSError as error:
        logger.warning("failed to share the node's metrics; counting this process only: %s", error)
        return
    exporter.serve(folder, at.host, at.port)
