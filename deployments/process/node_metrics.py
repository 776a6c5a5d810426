"""Joins a process's metrics to those of its node, and serves those (`observability.exporter`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from deployments.fleet.fleet import MetricsSettings
from observability import exporter, metric_files

logger = logging.getLogger("ray.serve")


def join(fleet: str, at: MetricsSettings, count: Callable[[Path], None]) -> None:
    """To be called before the process has any metric. `count` is of `observability.metric_files`.

    Where it cannot be done the process counts for itself alone, and goes on.
    """
    try:
        folder = metric_files.node_folder(fleet)
        count(folder)
    except OSError as error:
        logger.warning("metrics of the node are not stored: %s", error)
        return
    exporter.serve(folder, at.host, at.port)
