"""Joins a process's metrics to those of its node, and serves those (`observability.exporter`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from deployments.fleet.fleet import MetricsSettings
from observability import books, exporter

logger = logging.getLogger("ray.serve")


def join(fleet: str, at: MetricsSettings, count: Callable[[Path], None]) -> None:
    """`count` is one of `observability.books`. To be called before the process has any metric.

    Where it cannot be done the process counts for itself alone, and goes on.
    """
    folder = books.node_folder(fleet)
    try:
        count(folder)
    except OSError as error:
        logger.warning("metrics are not kept in %s: %s", folder, error)
        return
    exporter.serve(folder, at.host, at.port)
