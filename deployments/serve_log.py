"""What the packages below have to say, in the log that Ray Serve keeps for a replica."""

from __future__ import annotations

import logging

PACKAGES = ("deployments", "router", "observability")


class _ToServe(logging.Handler):
    """Passes records on, whatever handlers Serve has given its own logger by then."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("ray.serve").handle(record)


_TO_SERVE = _ToServe()


def adopt_logs() -> None:
    """To be called in a replica's process.

    Serve sets up its own logger alone; another's records go to the process's stderr, where
    `antefix logs` does not look. Source: ray/serve/_private/logging_utils.py.
    """
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO)
        logger.addHandler(_TO_SERVE)
