"""The nginx of docs/nginx.md, as it stands there, in front of real gateways and broken ones."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from getpass import getuser
from pathlib import Path

import aiohttp
import pytest

from deployments.fleet.fleet import GatewaySettings
from deployments.process.http_server import KEEP_ALIVE_S
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.missing import program
from tests.ports import free_ports
from tests.waiting import until

PAGE = Path(__file__).parents[1] / "docs" / "nginx.md"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


def nginx_example() -> str:
    found = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.S)
    assert len(found) == 1
    text: str = found[0]
    return text


def value_of(directive: str) -> str:
    found = re.findall(rf"\b{directive} ([^;]+);", nginx_example())
    assert len(found) == 1
    text: str = found[0]
    return text


def whole(port: int, gateways: tuple[int, int], folder: Path) -> str:
    """A configuration that nginx starts with, around the page's, on these ports."""
    site = nginx_example().replace("listen 80;", f"listen 127.0.0.1:{port};")
    addresses = re.findall(r"10\.0\.0\.\d+:8000", site)
    for address, gateway in zip(addresses, gateways, strict=True):
        site = site.replace(address, f"127.0.0.1:{gateway}")
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        # workers of root's are another user's, who may not write here
        f"daemon off; user {getuser()}; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary}\n{site}\n}}\n"
    )


@asynccontextmanager
async def nginx(folder: Path, *gateways: int) -> AsyncIterator[str]:
    """Its address, once it listens."""
    (port,) = free_ports(1)
    first, second = gateways
    file = folder / "nginx.conf"
    file.write_text(whole(port, (first, second), folder))
    command = [program("nginx"), "-e", str(folder / "start.log"), "-c", str(file)]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await until((folder / "pid").exists, within_s=30)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


def port_of(front: Front) -> int:
    return int(front.url.rsplit(":", 1)[1])


@asynccontextmanager
async def played(answers: bool) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A gateway's port and the requests it got; each is answered, or its connection is closed."""
    got: list[bytes] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head, re.I)[1])  # type: ignore[index]
        got.append(await reader.readexactly(length))
        if answers:
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], got


async def test_a_stream_passes_token_by_token(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.pauses_after = 2
    async with gateway_before(engine) as front:
        port = port_of(front)
        async with (
            nginx(tmp_path, port, port) as url,
            front.http.post(
                f"{url}/v1/chat/completions", json={**CHAT, "stream": True}, headers=front.headers
            ) as answer,
        ):
            assert answer.status == 200
            # the role, and the two tokens before the engine waits
            lines = [await answer.content.readline() for _ in range(6)]
            events = [json.loads(line[len("data: ") :]) for line in lines if line.strip()]
            tokens = [event["choices"][0]["delta"]["content"] for event in events]
            assert tokens[0] == "" and len(tokens) == 3
            assert engine.finished == 0
            engine.go_on.set()
            assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_stops_the_engine(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.pauses_after = 1
    async with gateway_before(engine) as front:
        port = port_of(front)
        async with nginx(tmp_path, port, port) as url:
            async with front.http.post(
                f"{url}/v1/chat/completions", json={**CHAT, "stream": True}, headers=front.headers
            ) as answer:
                await answer.content.readline()
                answer.close()
            await until(lambda: engine.aborted == 1)
            assert engine.finished == 0


async def test_nginx_skips_an_unreachable_gateway(tmp_path: Path) -> None:
    (gone,) = free_ports(1)
    async with (
        gateway_before(FakeEngine()) as front,
        nginx(tmp_path, gone, port_of(front)) as url,
    ):
        for _ in range(4):
            async with front.http.post(
                f"{url}/v1/chat/completions", json=CHAT, headers=front.headers
            ) as answer:
                assert answer.status == 200


async def test_a_request_that_a_gateway_received_is_not_repeated(tmp_path: Path) -> None:
    async with (
        played(answers=False) as (first, lost),
        played(answers=True) as (second, served),
        nginx(tmp_path, first, second) as url,
        aiohttp.ClientSession() as http,
    ):
        statuses = []
        for number in range(2):
            async with http.post(url, data=str(number)) as answer:
                statuses.append(answer.status)
    assert sorted(statuses) == [200, 502]
    assert sorted(lost + served) == [b"0", b"1"]


@pytest.mark.parametrize("size", [2**20 + 1, 4 * 2**20])
async def test_a_body_that_gateways_take_passes(tmp_path: Path, size: int) -> None:
    async with (
        played(answers=True) as (port, got),
        nginx(tmp_path, port, port) as url,
        aiohttp.ClientSession() as http,
        http.post(url, data=b"x" * size) as answer,
    ):
        assert answer.status == 200
    assert [len(body) for body in got] == [size]


def test_bodies_may_be_as_large_as_for_a_gateway() -> None:
    assert value_of("client_max_body_size") == f"{GatewaySettings().max_body_bytes // 2**20}m"


def test_the_timeout_of_nginx_exceeds_the_request_timeout_of_a_gateway() -> None:
    for directive in ("proxy_read_timeout", "proxy_send_timeout"):
        assert int(value_of(directive).removesuffix("s")) > GatewaySettings().request_timeout_s


def test_nginx_closes_idle_connections_before_a_gateway_does() -> None:
    assert int(value_of("keepalive_timeout").removesuffix("s")) < KEEP_ALIVE_S


def test_the_page_names_the_gateways_own_limits() -> None:
    text = PAGE.read_text()
    assert f"idle for {KEEP_ALIVE_S} s" in text
    default_s = GatewaySettings().request_timeout_s
    assert f"`gateway.request_timeout_s` ({default_s:g} s by default)" in text
