"""What `kubectl logs` of a gateway's, an engine's or the head's pod shows: the files, as JSON."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Iterator
from datetime import datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import pytest

from deployments.process.log_to_stdout import (
    OF_HEAD,
    OF_REPLICAS,
    UNFINISHED_S,
    LogFiles,
    copy_new_lines,
)

REPLICA = "serve/replica_antefix_gateway_abc.log"
WORKER = "worker-abc-01000000-123"
OF_GCS = "[2026-11-21 23:04:12,584 W 9 9] (gcs_server) gcs_server.cc:1307:"
ENDED = '{"timestamp":"2026-11-21T23:04:12.584+00:00","message":"request ended"}'


class Pod:
    """The log files of a pod, and what its container's stdout has got of them."""

    def __init__(self, folder: Path, component: str, pool: str = "") -> None:
        self.folder = folder
        self._whose = (component, pool)
        self._files = LogFiles(folder, OF_HEAD if component == "head" else OF_REPLICAS)
        self._stdout = io.BytesIO()

    def write(self, file: str, text: str) -> Path:
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as log:
            log.write(text)
        return path

    def skip(self) -> None:
        self._files.skip()

    def stdout(self) -> list[str]:
        """Return the lines so far."""
        copy_new_lines(self._files, self._stdout, *self._whose)
        return self._stdout.getvalue().decode().splitlines()

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout()]


@pytest.fixture
def engine(tmp_path: Path) -> Pod:
    return Pod(tmp_path, "engine", "llama")


@pytest.fixture
def head(tmp_path: Path) -> Pod:
    return Pod(tmp_path, "head")


@pytest.fixture
def rotating(engine: Pod) -> Iterator[logging.Logger]:
    """A replica's log that keeps two rotated files."""
    path = engine.write(REPLICA, "")
    handler = RotatingFileHandler(path, maxBytes=2000, backupCount=2)
    logger = logging.Logger("rotating")
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_a_json_line_of_a_replica_is_copied_unchanged(engine: Pod) -> None:
    engine.write(REPLICA, ENDED + "\n")
    assert engine.stdout() == [ENDED]


def test_a_line_of_text_becomes_the_message_of_an_object(engine: Pod) -> None:
    text = "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m WARNING 11-21 23:04:12 [core.py:1] slow"
    engine.write(f"{WORKER}.err", text + "\n")
    (line,) = engine.told()
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() is not None
    assert line == {
        "level": "WARNING",
        "message": "(EngineCore pid=7) WARNING 11-21 23:04:12 [core.py:1] slow",
        "component": "engine",
        "pool": "llama",
        "file": f"{WORKER}.err",
    }


def test_a_worker_cannot_forge_a_log_line_of_a_replica(engine: Pod) -> None:
    engine.write(f"{WORKER}.out", ENDED + "\n")
    assert [line["message"] for line in engine.told()] == [ENDED]


@pytest.mark.parametrize("text", [b"{ half an object", b"\xff\xfe", b'{"a": "\xff"}'])
def test_each_line_is_json_whatever_a_process_writes(engine: Pod, text: bytes) -> None:
    (engine.folder / f"{WORKER}.out").write_bytes(text + b"\n\n")
    assert len(engine.told()) == 1


def test_the_markers_of_ray_are_left_out(engine: Pod) -> None:
    engine.write(f"{WORKER}.out", ":job_id:01000000\n:actor_name:ServeReplica:x\nloaded\n")
    assert [line["message"] for line in engine.told()] == ["loaded"]


def test_each_line_is_copied_once(engine: Pod) -> None:
    engine.write(REPLICA, ENDED + "\n")
    assert len(engine.stdout()) == 1
    engine.write(REPLICA, ENDED + "\n" + ENDED + "\n")
    assert len(engine.stdout()) == 3
    assert len(engine.stdout()) == 3


def test_no_line_is_lost_or_repeated_when_files_rotate(
    engine: Pod, rotating: logging.Logger
) -> None:
    for number in range(600):
        rotating.warning('{"message":"%d"}', number)
        if number % 20 == 0:
            engine.stdout()
    assert [int(line["message"]) for line in engine.told()] == [*range(600)]
    rotated = [path.name for path in (engine.folder / "serve").iterdir()]
    assert len(rotated) == 3


def test_the_rest_of_a_file_that_has_just_rotated_is_copied_before_the_new_file(
    engine: Pod, rotating: logging.Logger
) -> None:
    engine.stdout()
    for number in range(60):
        rotating.warning('{"message":"%d %s"}', number, "x" * 50)
    assert [line["message"].split()[0] for line in engine.told()] == [*map(str, range(60))]


def test_the_lines_of_a_replica_that_starts_later_are_copied_too(engine: Pod) -> None:
    engine.write(REPLICA, ENDED + "\n")
    engine.stdout()
    engine.write("serve/replica_antefix_gateway_def.log", ENDED + "\n")
    assert engine.stdout() == [ENDED, ENDED]


def test_an_unfinished_line_is_not_copied_before_its_end(engine: Pod) -> None:
    engine.write(REPLICA, ENDED[:20])
    assert engine.stdout() == []
    engine.write(REPLICA, ENDED[20:] + "\n")
    assert engine.stdout() == [ENDED]


def test_the_unfinished_last_line_of_a_process_that_died_is_copied(engine: Pod) -> None:
    path = engine.write(f"{WORKER}.err", "Segmentation fau")
    assert engine.stdout() == []
    past = time.time() - UNFINISHED_S - 1
    os.utime(path, (past, past))
    assert [line["message"] for line in engine.told()] == ["Segmentation fau"]


def test_lines_of_an_earlier_container_are_not_copied_again(engine: Pod) -> None:
    engine.write(REPLICA, ENDED + "\n")
    engine.skip()
    assert engine.stdout() == []


def test_a_session_that_does_not_exist_yet_has_no_lines(tmp_path: Path) -> None:
    assert Pod(tmp_path / "session_latest" / "logs", "gateway").stdout() == []


def test_lines_of_ray_serves_controller_are_marked_in_the_heads_pod(head: Pod) -> None:
    head.write(
        "serve/controller_77.log", "INFO 2026-11-21 23:04:12,584 controller 77 -- Adding 1\n"
    )
    head.write("gcs_server.out", f"{OF_GCS} Node is alive\n")
    head.write(f"{WORKER}.err", "what the controller's process prints a second time\n")
    assert {line["component"]: line["message"].split()[-1] for line in head.told()} == {
        "controller": "1",
        "head": "alive",
    }


def test_statistics_of_ray_are_left_out(head: Pod) -> None:
    lines = ("Gcs Debug state:", "", "GcsNodeManager: ", "- RegisterNode request count: 1")
    head.write("gcs_server.out", "\n".join([f"{OF_GCS} {lines[0]}", *lines[1:], ""]))
    head.write(
        "gcs_server.out", f"{OF_GCS} main_service Event stats:\n\n\nGlobal stats: 867 total\n"
    )
    head.write("gcs_server.out", f"{OF_GCS} Node is dead\n")
    (line,) = head.told()
    assert line["message"].endswith("Node is dead")
    assert (line["level"], line["component"]) == ("WARNING", "head")
