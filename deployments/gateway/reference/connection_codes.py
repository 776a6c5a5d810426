"""Error codes of connections that a gateway closes before it reads a key, as docs/api.md lists
them."""

from __future__ import annotations

from deployments.gateway.reference.error_code import ErrorCode
from deployments.process.http_connection import ConnectionLimits as Limits

CONNECTION_CODES = (
    ErrorCode(
        "headers_timeout",
        408,
        f"The request line and the headers took longer than {Limits.head_s:g} s.",
        "Send them at once.",
        retry="yes",
    ),
    ErrorCode(
        "headers_too_large",
        431,
        f"The request line and the headers have more than {Limits.head_bytes:,} bytes.",
        "Send fewer or shorter headers.",
    ),
    ErrorCode(
        "too_many_headers",
        431,
        f"The request has more than {Limits.headers} headers.",
        "Send fewer headers.",
    ),
    ErrorCode(
        "body_too_slow",
        408,
        f"The body arrived at less than {Limits.body_bytes_per_s:,g} bytes a second for "
        f"{Limits.body_grace_s:g} s.",
        "Send it faster, without pauses.",
        retry="yes",
    ),
    ErrorCode(
        "invalid_http",
        400,
        "The bytes are not a valid HTTP/1.1 request. They may be TLS.",
        "Send HTTP/1.1 without TLS.",
    ),
    ErrorCode(
        "invalid_host", 400, "The request has no `Host` header, or several.", "Send exactly one."
    ),
    ErrorCode(
        "too_many_pipelined",
        400,
        f"More than {Limits.pipelined} requests wait on the connection for an earlier answer. It "
        "is closed; the code is only in metrics and the log.",
        "Wait for the answer, or open more connections.",
        retry="yes",
    ),
    ErrorCode(
        "too_many_connections",
        503,
        "The gateway has as many connections as it may open files for.",
        "Keep fewer connections open.",
        retry="Retry-After",
    ),
)
