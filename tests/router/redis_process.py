"""A real redis-server in any of its modes, for tests."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.local import redis_server

START_SECONDS = 60.0


@dataclass(frozen=True)
class RedisProcess:
    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def running(folder: Path, port: int, settings: str, *flags: str) -> Iterator[RedisProcess]:
    """A server with these lines of redis.conf; killed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    conf, log = folder / "redis.conf", folder / "redis.log"
    own = f'bind 127.0.0.1\ndir "{folder}"\nlogfile "{log}"\n'
    own += "" if "--sentinel" in flags else 'save ""\n'
    conf.write_text(own + settings)
    log.unlink(missing_ok=True)
    command = [redis_server.find_executable(os.environ), str(conf), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        ready = ("Ready to accept connections", "Sentinel ID is")
        deadline = time.monotonic() + START_SECONDS
        while not (log.exists() and any(words in log.read_text() for words in ready)):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield RedisProcess(port, process)
    finally:
        process.kill()
        process.wait()
