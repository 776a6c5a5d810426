"""Answers to connections that exceed a limit: an error in OpenAI's form, and the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from deployments.process.connection_limits import ConnectionLimits as Limits
from deployments.process.error_code import ErrorCode, codes_in

HEADERS_TIMEOUT = ErrorCode(
    "headers_timeout",
    408,
    f"The request line and the headers took longer than {Limits.head_s:g} s.",
    "Send them immediately after connecting.",
    retry="yes",
)
HEADERS_TOO_LARGE = ErrorCode(
    "headers_too_large",
    431,
    f"The request line and the headers have more than {Limits.head_bytes:,} bytes.",
    "Send fewer or shorter headers.",
)
TOO_MANY_HEADERS = ErrorCode(
    "too_many_headers",
    431,
    f"The request has more than {Limits.headers} headers.",
    "Send fewer headers.",
)
BODY_TOO_SLOW = ErrorCode(
    "body_too_slow",
    408,
    f"The body arrived at less than {Limits.body_bytes_per_s:,g} bytes per second for "
    f"{Limits.body_grace_s:g} s.",
    "Check the connection, and send the body without pauses.",
    retry="yes",
)
INVALID_HTTP = ErrorCode(
    "invalid_http",
    400,
    "The bytes are not a valid HTTP/1.1 request. They may be TLS.",
    "Send HTTP/1.1 without TLS.",
)
INVALID_HOST = ErrorCode(
    "invalid_host",
    400,
    "The request has no `Host` header or several of them.",
    "Send exactly one `Host` header.",
)
TOO_MANY_PIPELINED = ErrorCode(
    "too_many_pipelined",
    400,
    f"More than {Limits.pipelined} requests are waiting on the connection for an earlier answer. "
    "The gateway closes the connection. The code appears only in metrics and the log.",
    "Wait for the answer, or open additional connections.",
    retry="yes",
)
TOO_MANY_CONNECTIONS = ErrorCode(
    "too_many_connections",
    503,
    "The gateway has reached the maximum number of connections that its open files allow.",
    "Open fewer connections.",
    retry="Retry-After",
)

# Every code above, so that each has a counter that starts at 0.
CODES = codes_in(globals())


@dataclass(frozen=True)
class ConnectionRefusal:
    error: ErrorCode
    message: str

    @property
    def code(self) -> str:
        return self.error.name

    def answer(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        status = HTTPStatus(self.error.status)
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        body = json.dumps({"error": error}).encode()
        told = [
            *headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if "Retry-After" in self.error.retry:
            told.append((b"retry-after", b"1"))
        lines = [name + b": " + value + b"\r\n" for name, value in told]
        return b"".join([STATUS_LINE[status], *lines, b"\r\n", body])


def head_too_large(limit_bytes: int) -> ConnectionRefusal:
    message = (
        f"The request line and the headers are larger than the limit of {limit_bytes:,} bytes."
        " Send fewer or shorter headers. Prompts belong in the body."
    )
    return ConnectionRefusal(HEADERS_TOO_LARGE, message)


def too_many_headers(limit: int) -> ConnectionRefusal:
    message = (
        f"The request has more than {limit:,} headers, which is the limit. Send fewer headers."
    )
    return ConnectionRefusal(TOO_MANY_HEADERS, message)


def too_many_pipelined(limit: int) -> ConnectionRefusal:
    message = (
        f"More than {limit:,} requests are waiting on this connection for an earlier answer. Wait"
        " for that answer before you send the next request."
    )
    return ConnectionRefusal(TOO_MANY_PIPELINED, message)


def ambiguous(version: str, headers: list[tuple[bytes, bytes]]) -> ConnectionRefusal | None:
    """Return the refusal of requests that a proxy in front may read differently: RFC 9112, 3.2 and
    6.1."""
    names = [name for name, _ in headers]
    if version == "1.0" and b"transfer-encoding" in names:
        message = "HTTP/1.0 has no Transfer-Encoding. Send a Content-Length, or use HTTP/1.1."
        return ConnectionRefusal(INVALID_HTTP, message)
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version != "1.0"):
        message = f"The request has {hosts} Host headers, but it must have exactly one."
        return ConnectionRefusal(INVALID_HOST, message)
    return None


def head_timeout(limit_s: float) -> ConnectionRefusal:
    message = (
        f"The request line and the headers did not arrive within {limit_s:g} s."
        " Send them immediately after connecting."
    )
    return ConnectionRefusal(HEADERS_TIMEOUT, message)


def body_too_slow(window_s: float, bytes_per_s: float) -> ConnectionRefusal:
    message = (
        f"In the last {window_s:g} s, the body arrived more slowly than the required minimum of"
        f" {bytes_per_s:,g} bytes per second. Check your connection, and send the body without"
        " pauses."
    )
    return ConnectionRefusal(BODY_TOO_SLOW, message)


def too_many_connections(limit: int) -> ConnectionRefusal:
    message = (
        f"This server has reached its limit of {limit:,} connections."
        " Try again later, or open fewer connections."
    )
    return ConnectionRefusal(TOO_MANY_CONNECTIONS, message)


NOT_HTTP = ConnectionRefusal(
    INVALID_HTTP,
    "The bytes received are not an HTTP/1.1 request. Use plain HTTP, because this port does not "
    "support TLS.",
)
