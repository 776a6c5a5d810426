"""An HTTP server inside a Ray Serve replica, without Ray Serve's proxies.

Gateways listen on the fleet's port, several on one node through SO_REUSEPORT. Engines listen on
separate ports. docs/architecture.md has the measurements behind this.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from common.loops import until_next
from deployments.process.connection_limits import ConnectionLimits
from deployments.process.http_connection import BoundedConnection
from deployments.process.open_files import watch_open_files

KEEP_ALIVE_S = 75


TICK_S = 1.0


class _QuietServer(uvicorn.Server):
    """A uvicorn server that leaves the process's signal handlers to Ray.

    It wakes an idle process once a second to renew the Date header. uvicorn's loop wakes ten times
    a second to check whether to exit.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exits = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def exit(self) -> None:
        """End `serve` when the running exchanges have ended."""
        self.should_exit = True
        self._exits.set()

    async def main_loop(self) -> None:
        loop = asyncio.get_running_loop()
        # 0: the tick of each second, which renews the header
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_next(TICK_S, loop.time())):
                    await self._exits.wait()


class _LastAnswers:
    """ASGI: once `closing`, each answer is its connection's last, so that clients connect
    elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closed(message: Message) -> None:
            if self.closing and message["type"] == "http.response.start":
                headers = [*message.get("headers", []), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, closed)


class HttpServer:
    """Serve `app` from the event loop that starts it.

    `unacknowledged_s`: a connection is cut if the other machine does not acknowledge data for this
    long. Without it, the kernel retries a lost machine for a quarter of an hour.
    """

    def __init__(
        self,
        app: ASGIApp,
        unacknowledged_s: float | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._app = _LastAnswers(app)
        self._unacknowledged_s = unacknowledged_s
        connection = partial(BoundedConnection, limits or ConnectionLimits(), {})
        self._server = _QuietServer(
            uvicorn.Config(
                self._app,
                http=cast(type[asyncio.Protocol], connection),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                # otherwise any process on this machine could forge addresses in the logs
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=2048,
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> ServerState:
        """The open `connections` and the `tasks` of running exchanges, from uvicorn."""
        return self._server.server_state

    async def start(self, host: str, port: int = 0) -> str:
        """Listen and return the base URL; port 0 takes a free one. Raises OSError if the port is
        taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        if port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Linux has it, and accepted connections inherit it
        if self._unacknowledged_s and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(1000 * self._unacknowledged_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        sock.bind((host, port))
        watch_open_files()
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the HTTP server on {host} port {port} did not start")
            await asyncio.sleep(0.01)
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{sock.getsockname()[1]}"

    def close_connections(self) -> None:
        """Close each connection with its next answer. New connections are still accepted."""
        self._app.closing = True

    async def drain(self) -> None:
        """Stop listening. Return when the running exchanges have ended."""
        self._server.exit()
        if self._task is not None:
            await self._task
