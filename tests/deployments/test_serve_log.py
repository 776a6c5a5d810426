"""What any package logs is to be found where Serve keeps a replica's log."""

import logging
from collections.abc import Iterator
from logging.handlers import BufferingHandler

import pytest

from deployments.serve_log import PACKAGES, adopt_logs


@pytest.fixture
def serve_log() -> Iterator[BufferingHandler]:
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    handler = BufferingHandler(100)
    logging.getLogger("ray.serve").addHandler(handler)
    yield handler
    logging.getLogger("ray.serve").removeHandler(handler)
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.level, logger.handlers = level, handlers


@pytest.mark.parametrize("package", PACKAGES)
def test_a_packages_records_reach_serves_log_once(
    package: str, serve_log: BufferingHandler
) -> None:
    adopt_logs()
    adopt_logs()
    logging.getLogger(f"{package}.some.module").warning("told %s", "once")
    assert [record.getMessage() for record in serve_log.buffer] == ["told once"]
