"""A server without files left serves the connections that it has, and takes new ones later."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = """
import asyncio, logging, resource, sys, uvloop
from starlette.responses import PlainTextResponse
from deployments.process.http_server import HttpServer

async def app(scope, receive, send):
    await PlainTextResponse("here")(scope, receive, send)

async def main():
    server = HttpServer(app)
    url = await server.start("127.0.0.1")
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
    print(url.rpartition(":")[2], flush=True)
    await asyncio.to_thread(sys.stdin.readline)

logging.basicConfig()
loop = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[sys.argv[1]]
with asyncio.Runner(loop_factory=loop) as runner:
    runner.run(main())
"""


@contextlib.contextmanager
def served(loop: str, log: Path) -> Iterator[int]:
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def answer_on(connection: http.client.HTTPConnection) -> bytes:
    connection.request("GET", "/")
    return connection.getresponse().read()


def fresh(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        return answer_on(connection)
    finally:
        connection.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_server_without_file_descriptors_serves_open_connections_and_new_ones_later(
    loop: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with served(loop, log) as port:
        known = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        assert answer_on(known) == b"here"
        with contextlib.ExitStack() as flood:
            for _ in range(100):
                flood.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(15):
                assert answer_on(known) == b"here"
                time.sleep(0.2)  # asyncio tries again each second
        deadline = time.monotonic() + 30
        answer = b""
        while answer != b"here" and time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = fresh(port)
        assert answer == b"here"
        assert answer_on(known) == b"here"
    text = log.read_text()
    assert "Traceback" not in text
    assert text.count("new connections wait") <= 1
    if loop == "asyncio":
        assert "has reached its limit of open files" in text
