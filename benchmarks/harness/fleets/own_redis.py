"""A separate Redis for a benchmark, on loopback, without persistence."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from cli.local import redis_server
from cli.local.redis_server import RedisServer


@contextmanager
def running(folder: Path) -> Iterator[RedisServer]:
    """One as in fleets, with its files in `folder`. It is stopped at the end."""
    server = redis_server.start(folder / "redis", folder / "redis.log", os.environ)
    try:
        yield server
    finally:
        redis_server.stop(server)


@contextmanager
def unbounded() -> Iterator[str]:
    """The URL of one that never evicts, whatever memory that takes."""
    with (
        tempfile.TemporaryDirectory(prefix="afx-bench-") as folder,
        running(Path(folder)) as server,
    ):
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", 0)
        yield server.url
