"""Log output of a server whose process has no files left for new connections.

asyncio then accepts nothing for a second, and logs each attempt with a traceback. Here it is one
line per minute. Open connections continue, and new ones are accepted once files are free.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from typing import Any

logger = logging.getLogger(__name__)

COMPLAINT_PERIOD_S = 60.0
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


class OpenFiles:
    """Exception handler of one event loop. Other errors are handled as before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._before = loop.get_exception_handler()
        self._told_at = float("-inf")
        self._untold = 0
        loop.set_exception_handler(self._handle)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
            self._untold += 1
            self._tell(error)
        elif self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)

    def _tell(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._told_at >= COMPLAINT_PERIOD_S:
            logger.error(
                "failed to accept connections: this process has reached its limit of open files"
                " (%s, %d times). Raise it with `ulimit -n` or LimitNOFILE",
                *(error.strerror, self._untold),
            )
            self._told_at, self._untold = now, 0


def watch_open_files() -> None:
    """Watch the running loop. Once is enough."""
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    if not isinstance(getattr(handler, "__self__", None), OpenFiles):
        OpenFiles(loop)
