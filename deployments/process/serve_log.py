"""The log of a replica: one JSON object per line, in Ray Serve's log file.

Serve's JSON costs every request four times as much: 140 µs a line instead of 34, because it asks
Ray for ids and formats a record twice. Serve's first lines, from before `adopt_logs`, use Serve's
format.

Prompts are not logged: for an exception in a request, only its kind and place are written, because
its message may quote one.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

import msgspec
from ray import serve
from ray.serve.exceptions import RayServeException

OWN_PACKAGES = ("autoscaling", "deployments", "observability", "router")
# Otherwise these log to the process's stderr, without the name of their component.
OTHER_LOGGERS = ("opentelemetry", "uvicorn.error")

# The request of the current task.
current_request: ContextVar[str] = ContextVar("current_request", default="")


def adopt_logs(component: Literal["gateway", "engine"]) -> None:
    """Set up the logs of a replica's process, called by its constructor. Repeated calls do no harm.

    Serve sets up only its own logger, with a file and stderr; records of other loggers would go to
    stderr. Afterwards all of them go only to the file. Source: ray/serve/_private/logging_utils.py,
    2.60.
    """
    serves = logging.getLogger("ray.serve")
    handler = _handler(serves)
    handler.setFormatter(JsonLines({"component": component, **_whose(component)}))
    handler.addFilter(_is_no_access_line)
    serves.handlers = [handler]
    for name in (*OWN_PACKAGES, *OTHER_LOGGERS):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO if name in OWN_PACKAGES else logging.WARNING)
        logger.handlers = [handler]


def ray_logs() -> Path | None:
    """Return Ray's folder of logs, which contains Serve's folder; None if Serve does not log to a
    file."""
    handler = _handler(logging.getLogger("ray.serve"))
    return Path(handler.baseFilename).parents[1] if isinstance(handler, _LogFile) else None


def set_log_level(level: str) -> None:
    """Set the lowest level that is logged, one of logging's names in any case.

    Levels of other packages stay unchanged.
    """
    for name in ("ray.serve", *OWN_PACKAGES):
        logging.getLogger(name).setLevel(level.upper())


class JsonLines(logging.Formatter):
    """Format one object per line: the fields of `origin`, and of a record `extra={"facts":
    {...}}`."""

    def __init__(self, origin: Mapping[str, str]) -> None:
        super().__init__()
        self._origin = dict(origin)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._origin,
        }
        request_id = current_request.get()
        if request_id:
            line["request_id"] = request_id
        if record.exc_info and record.exc_info[1] is not None:
            # uvicorn also logs about requests outside their tasks
            may_quote = bool(request_id) or record.name.startswith("uvicorn")
            line["exception"] = _exception(record.exc_info[1], may_quote)
        line |= getattr(record, "facts", {})
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:  # a lone surrogate, as JSON may contain
            return json.dumps(line, default=str)


class _LogFile(RotatingFileHandler):
    """Serve's file, which rotates as Serve's does."""

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802
        # the standard method formats the record to get its length, and checks the disk
        return self.stream is not None and 0 < self.maxBytes <= self.stream.tell()


def _is_no_access_line(record: logging.LogRecord) -> bool:
    """Return whether a record is not an access line. Serve logs one for each reservation; a
    gateway's log has more about it."""
    return not getattr(record, "serve_access_log", False)


def _handler(serves: logging.Logger) -> logging.Handler:
    for handler in serves.handlers:
        file = getattr(handler, "target", handler)
        if isinstance(file, _LogFile):
            return file
        if isinstance(file, RotatingFileHandler):
            handler.flush()
            file.close()
            return _LogFile(file.baseFilename, "a", file.maxBytes, file.backupCount, "utf-8")
    return logging.StreamHandler(sys.__stderr__)


def _whose(component: str) -> dict[str, str]:
    """Return the component's names. An engine's deployment is named after its pool."""
    try:
        context = serve.get_replica_context()
    except RayServeException:  # not in a replica
        return {}
    whose = {"replica": context.replica_id.unique_id}
    return whose | {"pool": context.deployment} if component == "engine" else whose


def _exception(error: BaseException, may_quote: bool) -> str:
    if not may_quote:
        return "".join(traceback.format_exception(error)).rstrip()
    told: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        name = f"{type(cause).__module__}.{type(cause).__qualname__}"
        told.append("".join(traceback.format_tb(cause.__traceback__)) + name)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(reversed(told))
