"""Answers to connections that exceed a limit: an error in OpenAI's form, and the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

# Every code below, so that each has a counter that starts at 0.
CODES = (
    "body_too_slow",
    "headers_timeout",
    "headers_too_large",
    "invalid_host",
    "invalid_http",
    "too_many_connections",
    "too_many_headers",
    "too_many_pipelined",
)


@dataclass(frozen=True)
class ConnectionRefusal:
    status: HTTPStatus
    code: str
    message: str

    def answer(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        body = json.dumps({"error": error}).encode()
        told = [
            *headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if self.status == HTTPStatus.SERVICE_UNAVAILABLE:
            told.append((b"retry-after", b"1"))
        lines = [name + b": " + value + b"\r\n" for name, value in told]
        return b"".join([STATUS_LINE[self.status], *lines, b"\r\n", body])


def head_too_large(limit_bytes: int) -> ConnectionRefusal:
    message = (
        f"The request line and the headers take more than the allowed {limit_bytes} bytes."
        " Send fewer or shorter ones; prompts belong in the body."
    )
    return ConnectionRefusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message
    )


def too_many_headers(limit: int) -> ConnectionRefusal:
    message = f"The request has more than the allowed {limit} headers. Send fewer."
    return ConnectionRefusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_many_headers", message
    )


def too_many_pipelined(limit: int) -> ConnectionRefusal:
    message = (
        f"More than the allowed {limit} requests wait on this connection for the answer to an"
        " earlier one. Send the next one after that answer."
    )
    return ConnectionRefusal(HTTPStatus.BAD_REQUEST, "too_many_pipelined", message)


def ambiguous(version: str, headers: list[tuple[bytes, bytes]]) -> ConnectionRefusal | None:
    """Return the refusal of requests that a proxy in front may read differently: RFC 9112, 3.2 and
    6.1."""
    names = [name for name, _ in headers]
    if version == "1.0" and b"transfer-encoding" in names:
        message = "HTTP/1.0 has no Transfer-Encoding. Send a Content-Length, or HTTP/1.1."
        return ConnectionRefusal(HTTPStatus.BAD_REQUEST, "invalid_http", message)
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version != "1.0"):
        message = f"The request has {hosts} Host headers, but must have one. Send exactly one."
        return ConnectionRefusal(HTTPStatus.BAD_REQUEST, "invalid_host", message)
    return None


def head_timeout(limit_s: float) -> ConnectionRefusal:
    message = (
        f"The request line and the headers did not arrive within {limit_s:g} s."
        " Send them at once after connecting."
    )
    return ConnectionRefusal(HTTPStatus.REQUEST_TIMEOUT, "headers_timeout", message)


def body_too_slow(window_s: float, bytes_per_s: float) -> ConnectionRefusal:
    message = (
        f"In the last {window_s:g} s the body arrived at less than the required"
        f" {bytes_per_s:g} bytes a second. Send it faster, without pauses."
    )
    return ConnectionRefusal(HTTPStatus.REQUEST_TIMEOUT, "body_too_slow", message)


def too_many_connections(limit: int) -> ConnectionRefusal:
    message = (
        f"This server has {limit} connections, which is its limit."
        " Try again later, or keep fewer open."
    )
    return ConnectionRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "too_many_connections", message)


NOT_HTTP = ConnectionRefusal(
    HTTPStatus.BAD_REQUEST,
    "invalid_http",
    "The bytes received are not an HTTP/1.1 request. Send one without TLS, which this port does "
    "not use.",
)
