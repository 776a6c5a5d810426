"""One line of a log in readable form: time, level, message, and its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

# Names used by Antefix and, in a replica's first lines, by Ray Serve.
_TIME, _LEVEL, _EXCEPTION = (
    ("timestamp", "asctime"),
    ("level", "levelname"),
    ("exception", "exc_text"),
)
# Fields that the command shows otherwise, or that are of no use. The rest is Ray Serve's.
_LEFT_OUT = {
    *("message", "logger", "component", "replica"),
    *("filename", "lineno", "process", "worker_id", "node_id", "actor_id", "actor_name"),
    *("task_name", "task_func_name", "deployment", "component_name", "application"),
    *("timestamp_ns", "log_to_stderr", "name"),
}

# A request's line (deployments.gateway.record.request_log) in short form.
_REQUEST = "request ended"
_BESIDE_OK = ("error", "stage")

_STAMP = re.compile(r'"(?:timestamp|asctime)": ?"([^"]+)"')
# The time of a line of text is within these characters, after a process's name and a level.
_BEGINNING = 100
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?!\d)")
_REDIS = re.compile(r"\d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d\.\d{3}")
_VLLM = re.compile(r"\b[A-Z]{4,8} (\d\d-\d\d \d\d:\d\d:\d\d) ")


def time_of(line: str, latest: float) -> float | None:
    """Return when a process of the fleet wrote the line; None if it has no time.

    In epoch seconds, like `latest`, the time of its file's last change. A time without a zone is
    local. A time without a year, as vLLM writes it, is the last such time before `latest`.
    """
    if line.startswith("{"):
        stamp = _STAMP.search(line)
        return _seconds(stamp[1]) if stamp else None
    beginning = line[:_BEGINNING]
    if found := _ISO.search(beginning):
        return _seconds(found[0])
    if found := _REDIS.search(beginning):
        return _seconds(found[0], "%d %b %Y %H:%M:%S.%f")
    if found := _VLLM.search(beginning):
        this_year = datetime.fromtimestamp(latest).year
        at = _seconds(f"{this_year}-{found[1]}")
        return at if at is None or at < latest + 1.0 else _seconds(f"{this_year - 1}-{found[1]}")
    return None


def _seconds(text: str, form: str = "") -> float | None:
    """Parse a time; without a `form`, as ISO 8601."""
    try:
        at = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp()


def is_json(line: str) -> bool:
    return parsed(line) is not None


def mention_of(request_id: str) -> re.Pattern[str]:
    """Return a pattern that finds a request's id; vLLM adds text before and after it."""
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(request_id)}(?![A-Za-z0-9])")


def parsed(line: str) -> dict[str, Any] | None:
    """Return the fields of a JSON line; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if "message" in told else None


def readable(line: str, whole: bool = False) -> str:
    """Return a JSON line as text, with its exception on the following lines; other lines
    unchanged. Unless `whole`, a request is in short form."""
    told = parsed(line)
    if told is None:
        return line
    if told["message"] == _REQUEST and not whole:
        return f"{_local(_first(told, _TIME))} {_first(told, _LEVEL):7} {_request(told)}"
    facts = {
        name: value
        for name, value in told.items()
        if name not in _LEFT_OUT and name not in (*_TIME, *_LEVEL, *_EXCEPTION)
    }
    said = " ".join(f"{name}={_shown(value)}" for name, value in facts.items())
    text = f"{_local(_first(told, _TIME))} {_first(told, _LEVEL):7} {told['message']} {said}"
    return "\n".join([text.rstrip(), *_first(told, _EXCEPTION).splitlines()])


def _request(told: Mapping[str, Any]) -> str:
    """Return a request's known facts: status, model, times, tokens, replica, tenant, id."""
    said = [str(told.get("status", "?"))]
    if (outcome := told.get("outcome")) != "ok":
        said += [str(outcome), *(str(told[name]) for name in _BESIDE_OK if name in told)]
    if "model" in told:
        said.append(str(told["model"]))
    parts = [" ".join(said)]
    for name, form in (
        ("duration_s", "{:.3g} s"),
        ("ttft_s", "first token {:.3g} s"),
        ("prompt_tokens", "{} tokens in"),
        ("cached_tokens", "{} cached"),
        ("output_tokens", "{} out"),
        ("served_by_replica", "on {}"),
        ("resumed", "resume: {}"),
        ("tenant", "for {}"),
        ("request_id", "{}"),
    ):
        if name in told:
            parts.append(form.format(told[name]))
    return ", ".join(parts)


def _first(told: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(told[name]) for name in names if name in told), "")


def _local(timestamp: str) -> str:
    """Return local time with its zone; Ray Serve writes local time without one."""
    try:
        at = datetime.fromisoformat(timestamp).astimezone()
    except ValueError:
        return timestamp
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {at:%Z}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
