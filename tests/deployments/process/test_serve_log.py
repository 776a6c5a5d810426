"""A replica's log: what any package says is JSON, in the file that Serve set up, there alone."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.common import ServeComponentType
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig

from deployments.process.serve_log import (
    OTHER_LOGGERS,
    OWN_PACKAGES,
    adopt_logs,
    current_request,
    ray_logs,
)

MAX_BYTES = 5000
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where Serve's own function, as it runs in a replica, keeps a log."""
    names = ["ray.serve", *OWN_PACKAGES, *OTHER_LOGGERS]
    before = [
        (logger, logger.level, logger.propagate, list(logger.handlers))
        for logger in map(logging.getLogger, names)
    ]
    configure_component_logger(
        component_name="antefix_gateway",
        component_id="abc",
        component_type=ServeComponentType.REPLICA,
        logging_config=LoggingConfig(logs_dir=str(tmp_path), encoding="JSON"),
        max_bytes=MAX_BYTES,
        backup_count=2,
    )
    yield tmp_path
    for handler in logging.getLogger("ray.serve").handlers:
        handler.close()
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers


@pytest.fixture
def lines(folder: Path) -> Lines:
    (file,) = folder.iterdir()

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text().splitlines()]

    return read


@pytest.mark.parametrize("package", [*OWN_PACKAGES, *OTHER_LOGGERS, "ray.serve"])
def test_log_records_of_any_package_are_written_once_to_the_ray_serve_file(
    package: str, lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    adopt_logs("gateway")
    adopt_logs("gateway")
    logging.getLogger(f"{package}.some.module").warning("told %s", "once")
    assert [line["message"] for line in lines()] == ["told once"]
    assert "told once" not in capfd.readouterr().err


def test_a_log_line_has_time_level_logger_message_component_and_facts(lines: Lines) -> None:
    adopt_logs("engine")
    logging.getLogger("router.index.index").error("gone", extra={"facts": {"seconds": 1.5}})
    (line,) = lines()
    assert line.pop("timestamp").endswith("+00:00")
    assert line == {
        "level": "ERROR",
        "logger": "router.index.index",
        "message": "gone",
        "component": "engine",
        "seconds": 1.5,
    }


def test_earlier_lines_of_ray_serve_stay_in_the_file(lines: Lines) -> None:
    logging.getLogger("ray.serve").info("Initializing replica")
    adopt_logs("gateway")
    logging.getLogger("ray.serve").info("ready")
    assert [line["message"] for line in lines()] == ["Initializing replica", "ready"]


def test_serves_own_line_for_each_call_is_left_out(lines: Lines) -> None:
    adopt_logs("engine")
    logging.getLogger("ray.serve").info("CALL hold OK 1ms", extra={"serve_access_log": True})
    assert lines() == []


def test_a_line_within_a_request_has_its_id(lines: Lines) -> None:
    adopt_logs("gateway")
    token = current_request.set("abc")
    logging.getLogger("deployments").info("one")
    current_request.reset(token)
    logging.getLogger("deployments").info("two")
    assert [line.get("request_id") for line in lines()] == ["abc", None]


def fail(logger: str) -> None:
    try:
        try:
            raise KeyError("the prompt")
        except KeyError as error:
            raise ValueError("the prompt, too") from error
    except ValueError:
        logging.getLogger(logger).exception("it failed")


def test_an_exception_is_logged_with_its_traceback(lines: Lines) -> None:
    adopt_logs("gateway")
    fail("deployments")
    (line,) = lines()
    assert "ValueError: the prompt, too" in line["exception"]
    assert __file__ in line["exception"]


@pytest.mark.parametrize(("logger", "request_id"), [("deployments", "abc"), ("uvicorn.error", "")])
def test_an_exception_of_a_request_is_logged_with_its_place_and_no_message(
    lines: Lines, logger: str, request_id: str
) -> None:
    adopt_logs("gateway")
    token = current_request.set(request_id)
    fail(logger)
    current_request.reset(token)
    (line,) = lines()
    assert "builtins.ValueError" in line["exception"]
    assert "builtins.KeyError" in line["exception"]
    assert __file__ in line["exception"]
    assert ": the prompt" not in line["exception"]
    assert "KeyError: " not in line["exception"]


def test_a_line_with_a_lone_surrogate_is_logged(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not for pytest's own capture, which cannot pass it on to another process
    monkeypatch.setattr(logging.getLogger("deployments"), "propagate", False)
    adopt_logs("gateway")
    logging.getLogger("deployments").info("the model \ud800")
    assert [line["message"] for line in lines()] == ["the model \ud800"]


def test_the_log_file_rotates_as_configured_for_ray_serve(folder: Path) -> None:
    adopt_logs("gateway")
    for _ in range(3 * MAX_BYTES // 100):
        logging.getLogger("deployments").info("x" * 100)
    files = sorted(folder.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= MAX_BYTES + 500 for file in files)


def test_rays_own_logs_are_in_the_folder_above_serves(folder: Path) -> None:
    adopt_logs("engine")
    assert ray_logs() == folder.parent
