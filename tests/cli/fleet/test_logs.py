"""`antefix logs` over files as a fleet leaves them."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.local.home import Home
from cli.main import app

ENDED: dict[str, object] = {
    "timestamp": "2026-05-01T10:00:00.123+00:00",
    "level": "INFO",
    "logger": "deployments.gateway.request_log",
    "message": "request ended",
    "component": "gateway",
    "replica": "abcd1234",
    "request_id": "r-1",
    "outcome": "ok",
    "status": 200,
}
FAILED = {**ENDED, "message": "it failed", "level": "ERROR", "request_id": "r-12"}
FAILED["exception"] = "Traceback\n  File x\nValueError: no"
SERVES: dict[str, object] = {
    "asctime": "2026-05-01 10:00:00,123",
    "levelname": "INFO",
    "message": "Initializing",
}
SERVES |= {"deployment": "small", "process": 1, "worker_id": "ffff"}
VLLM = "(EngineCore pid=7) INFO 05-01 10:00:01 [core.py:1] request chatcmpl-r-1-7f aborted"
ZONE = f"{datetime(2026, 5, 1, 10).astimezone():%Z}"
LAST_WRITTEN = datetime(2026, 5, 2, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running fleet's log files; that there is one is all that is pretended."""
    serve, home = tmp_path / "ray" / "serve", tmp_path / "home"
    serve.mkdir(parents=True)
    monkeypatch.setenv("ANTEFIX_HOME", str(home))
    monkeypatch.setattr(Home, "state", lambda self: object())
    monkeypatch.setattr("cli.local.cluster.ray_logs", lambda state: tmp_path / "ray")
    said = {
        serve / "replica_antefix_gateway_abcd1234.log": [json.dumps(ENDED), json.dumps(FAILED)],
        serve / "replica_antefix-small_small_efgh5678.log": [json.dumps(SERVES)],
        tmp_path / "ray" / "worker-1.err": [":actor_name:ServeReplica:antefix-small:small", VLLM],
    }
    said[Home().logs / "prometheus.log"] = ["level=info msg=ready"]
    for file, lines in said.items():
        write(file, *lines)


def write(file: Path, *lines: str) -> None:
    file.write_text("\n".join(lines) + "\n")
    os.utime(file, (LAST_WRITTEN, LAST_WRITTEN))


def logs(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["logs", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_a_json_line_is_shown_as_text_with_its_fields() -> None:
    (line, *_) = logs("--component", "gateway")
    component, _, rest = line.partition(" | ")
    assert component.strip() == "gateway"
    assert rest.split(" ", 2)[1:] == [ZONE, "INFO    200, r-1"]


def test_a_request_is_one_short_line(tmp_path: Path) -> None:
    file = tmp_path / "ray" / "serve" / "replica_antefix_gateway_abcd1234.log"
    facts = {"model": "qwen", "duration_s": 1.50213, "ttft_s": 0.12346, "tenant": "team-a"}
    facts |= {"prompt_tokens": 100, "cached_tokens": 48, "output_tokens": 30}
    late = {"status": 504, "outcome": "deadline", "error": "deadline_exceeded", "stage": "engine"}
    write(file, json.dumps(ENDED | facts), json.dumps(ENDED | {"model": "qwen"} | late))
    assert [line.partition("INFO    ")[2] for line in logs("--component", "gateway")] == [
        "200 qwen, 1.5 s, first token 0.123 s, 100 tokens in, 48 cached, 30 out, for team-a, r-1",
        "504 deadline deadline_exceeded engine qwen, r-1",
    ]


def test_with_its_id_a_request_has_all_fields() -> None:
    (line, *_) = logs("--request", "r-1", "--component", "gateway")
    assert line.endswith(f"{ZONE} INFO    request ended request_id=r-1 outcome=ok status=200")


def test_an_exception_follows_on_separate_lines() -> None:
    assert logs("--component", "gateway")[-3:] == [
        "gateway | Traceback",
        "gateway |   File x",
        "gateway | ValueError: no",
    ]


def test_monitoring_of_a_fleet_is_a_separate_component() -> None:
    assert logs("--component", "monitoring") == ["monitoring | level=info msg=ready"]


def test_the_first_lines_of_ray_serve_are_shown_like_those_of_antefix() -> None:
    assert f"engine  | 10:00:00.123 {ZONE} INFO    Initializing" in logs("--component", "engine")


def test_text_is_shown_as_it_is() -> None:
    assert f"engine  | {VLLM}" in logs()


def test_json_lines_are_given_as_they_are_and_no_others() -> None:
    assert [json.loads(line) for line in logs("-o", "json")] == [ENDED, FAILED, SERVES]


def test_a_request_id_does_not_match_a_longer_id() -> None:
    found = logs("--request", "r-1")
    assert len(found) == 2
    assert "request_id=r-1 " in found[0]
    assert found[1].endswith(VLLM)


def test_the_lines_of_a_request_are_found_at_any_distance_from_the_end(tmp_path: Path) -> None:
    file = tmp_path / "ray" / "serve" / "replica_antefix_gateway_abcd1234.log"
    with file.open("a") as log:
        log.writelines(json.dumps({**ENDED, "request_id": "x" * 100}) + "\n" for _ in range(3000))
    assert any("request_id=r-1 " in line for line in logs("--request", "r-1"))


def test_a_requests_lines_are_found_in_a_file_that_was_rotated(tmp_path: Path) -> None:
    older = tmp_path / "ray" / "serve" / "replica_antefix_gateway_abcd1234.log.1"
    write(older, json.dumps({**FAILED, "request_id": "of-yesterday"}))
    assert "it failed" in logs("--request", "of-yesterday")[0]
    assert not any("of-yesterday" in line for line in logs("--tail", "100"))


def test_a_request_without_a_line_is_an_error_that_says_where_ids_are() -> None:
    done = CliRunner().invoke(app, ["logs", "--request", "nobody"])
    assert done.exit_code == ExitCode.FAILED
    assert "'nobody'" in done.stderr and "x-request-id" in done.stderr


def test_the_tail_option_counts_lines_after_filtering() -> None:
    assert len(logs("--request", "r-1", "--tail", "1", "--component", "gateway")) == 1
    assert logs("--tail", "0") == []


@pytest.fixture
def of_all(tmp_path: Path) -> list[str]:
    """Every process's way of telling the time, in the order of time; each file has its own."""
    in_utc = [datetime(2026, 5, 1, 11, 0, s).astimezone(UTC).isoformat() for s in range(7)]
    told = {
        "serve/replica_antefix_gateway_abcd1234.log": [
            f'{{"timestamp":"{in_utc[0]}","message":"of the gateway"}}',
            f'{{"timestamp":"{in_utc[6]}","message":"of the gateway, later"}}',
        ],
        "serve/replica_antefix_small_efgh5678.log": [
            '{"levelname": "INFO", "asctime": "2026-05-01 11:00:01,100", "message": "of Serve"}'
        ],
        "raylet.out": ["[2026-05-01 11:00:02,100 I 1 1] (raylet) main.cc:1: of Ray"],
        "worker-1.err": [
            "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m ERROR 05-01 11:00:03 [core.py:1] of vLLM",
            "  File of vLLM",
            "ValueError: of vLLM",
        ],
        "../home/logs/redis.log": ["7:M 01 May 2026 11:00:04.100 * of Redis"],
        "../home/logs/prometheus.log": [f"time={in_utc[5]} level=INFO msg=watches"],
    }
    for name, lines in told.items():
        write(tmp_path / "ray" / name, *lines)
    return [
        *("of the gateway", "of Serve", "of Ray", "of vLLM", "  File of vLLM"),
        *("ValueError: of vLLM", "of Redis", "msg=watches", "of the gateway, later"),
    ]


@pytest.mark.parametrize("count", [1, 4, 9])
def test_the_last_lines_are_the_last_in_time_over_all_files(of_all: list[str], count: int) -> None:
    shown = logs("--tail", str(count))
    assert len(shown) == count
    for line, told in zip(shown, of_all[-count:], strict=True):
        assert line.endswith(told)


def test_a_time_without_a_year_is_never_in_the_future(tmp_path: Path) -> None:
    write(tmp_path / "ray" / "worker-1.err", "INFO 12-31 23:59:59 [core.py:1] of last year")
    assert "of last year" in logs("--component", "ray")[0]


def test_lines_without_a_time_get_the_time_of_their_file(tmp_path: Path) -> None:
    write(tmp_path / "ray" / "worker-1.out", "a word without a time")
    assert logs("--tail", "1") == ["ray     | a word without a time"]


def test_the_tail_option_reads_thousands_of_lines_back(tmp_path: Path) -> None:
    file = tmp_path / "ray" / "raylet.out"
    write(file, *(f"[2026-05-01 12:00:00,000 I 1 1] {n} {'x' * 200}" for n in range(3000)))
    assert "I 1 1] 0 xx" in logs("--tail", "3000", "--component", "ray")[0]
