"""docs/api.md, written from the tables in this package.

`python -m deployments.gateway.reference.api_reference` prints it; `make reference` puts it in its
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deployments.gateway.intake.errors import error_type
from deployments.gateway.reference.client_headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    ClientHeader,
)
from deployments.gateway.reference.endpoints import ENDPOINTS
from deployments.gateway.reference.error_code import ErrorCode, Retry
from deployments.gateway.reference.error_codes import ERROR_CODES
from deployments.gateway.reference.request_fields import READ, REFUSED

_INTRODUCTION = """\
# The HTTP API

<!-- Written by `make reference` from deployments/gateway/reference/. Change it there. -->

Every gateway serves the OpenAI API and Anthropic's Messages API at `gateway.host` and
`gateway.port` of the [fleet file](fleet-file.md), without TLS. The pool's engine validates
the fields that the gateway does not read. So every feature of vLLM's API works, except what
[the gateway refuses](#fields-that-the-gateway-refuses).

Bodies and answers are JSON, except [streams](#streams), the forms of [audio](clients.md#audio) and
the page for people. Metrics have [another port](metrics.md).

## Endpoints

A key is sent as `Authorization: Bearer KEY` or `x-api-key: KEY`. Operators are tenants with
`operator: true` in the fleet file. `GET` paths also answer `HEAD`. A pool rejects endpoints that
its model does not support with `unsupported_endpoint`.
"""

_REQUEST_HEADERS = """\
## Request headers

Times are seconds. The gateway ignores other headers, and sends none of them to the engine.
"""

_RESPONSE_HEADERS = """\
## Response headers

The headers of a stream arrive with its first token, because most of them are known only then. Every
answer of an engine has `x-antefix-replica` and `x-antefix-model`.
"""

_READ = """\
## Fields that the gateway reads

The engine's own description of all fields is at `/openapi.json`. `null` counts as absent. The
*generating* endpoints are chat completions, completions, responses and messages. `/rerank` and
`/score` stand for their paths under `/v1` and `/v2`, too.
"""

_REFUSED = """\
## Fields that the gateway refuses

The engine would ignore most of these silently, or serve them at other tenants' cost. For fields of
other APIs, an empty or false value passes. The code is `field_not_allowed`, unless a row names
another.
"""

_STREAMS = """\
## Streams

With `"stream": true`, the generating endpoints answer with server-sent events,
`Content-Type: text/event-stream`:

```
data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", ...}

data: [DONE]
```

- The gateway sends whole events only. Each ends with an empty line.
- Chat completions and completions end with `data: [DONE]`. The events of responses and messages
  also have a line `event: TYPE`. The last one is `response.completed` or `message_stop`.
- Blocks that begin with a colon are comments, which clients ignore. After
  `: antefix-resumed continued`, another engine continues the answer, and its tokens may differ.
- An error before the first token is an ordinary answer with its HTTP status. A later error is the
  stream's last event:

| API | Last event |
| -- | -- |
| chat completions, completions | `data: {"error": {"message", "type", "param", "code"}}` |
| responses | `event: error` with `type`, `code`, `message`, `param`, `sequence_number`, `error` |
| messages | `event: error` with `type`, `error`, `request_id` |

A stream that ends without one of these last events is incomplete. Send the request again, or
[resume the stream](resuming.md#when-a-gateway-is-lost). If an answer is not a
stream, the gateway closes the connection before the end of the body.
"""

_ERRORS = """\
## Errors

```json
{"error": {"message": "...", "type": "rate_limit_error", "param": null, "code": "queue_full"}}
```

Errors of `/v1/messages`, and of requests with the header `anthropic-version` to endpoints that no
engine serves, have Anthropic's form. It has `param` and `code`, too:

```json
{"type": "error", "request_id": "...", "error": {"type": "overloaded_error", "message": "...",
 "param": null, "code": "no_replica"}}
```

Programs should read `code`: the text of `message`, which says what to do, may change in any
release. `param` names the field or header at fault, or is `null`. `antefix_errors_total` counts
errors by code. `type` follows from the status: {types}; otherwise
`invalid_request_error`.

The last column says whether to send the same request again:

| Retry | Meaning |
| -- | -- |
| empty | The same request fails again. |
| yes | It may succeed. Wait a little longer after each failure. |
| `Retry-After` | It may succeed after the seconds in that header. |
| `x-should-retry: false` | It fails again. The header stops clients that retry by status. |
"""

_BEFORE_CONNECTIONS = """\
The gateway closes the connection after one of these errors, which it makes before it reads a key.
`antefix_connections_refused_total` counts them by code.
"""

_CLIENTS = {
    "any key": "For any key:",
    "operators": "For operators:",
    "any client": "Without a key:",
}

FIELD_NOT_ALLOWED = "field_not_allowed"

_RETRIES: dict[Retry, str] = {
    "no": "",
    "yes": "yes",
    "Retry-After": "`Retry-After`",
    "stop": "`x-should-retry: false`",
    "Retry-After, stop": "`Retry-After`, `x-should-retry: false`",
}


def reference() -> str:
    """The whole page, as Markdown."""
    read = ((", ".join(map(_code, each.names)), each.paths, each.use) for each in READ)
    sections = [
        _INTRODUCTION,
        *map(_endpoints, _CLIENTS),
        _REQUEST_HEADERS,
        _headers(REQUEST_HEADERS),
        _RESPONSE_HEADERS,
        _headers(RESPONSE_HEADERS),
        _READ,
        _table(("Fields", "Endpoints", "Use"), read),
        _REFUSED,
        _table(("Field", "Endpoints", "Instead"), _refused()),
        _STREAMS,
        _ERRORS.replace("{types}", ", ".join(_types())),
    ]
    for title, codes in ERROR_CODES.items():
        sections.append(f"### {title}\n")
        if title == "Connections":
            sections.append(_BEFORE_CONNECTIONS)
        header = ("Code", "Status", "Occurs when", "Remedy", "Retry")
        sections.append(_table(header, map(_row, codes)))
    return "\n".join(sections)


def _types() -> Iterable[str]:
    for status in sorted(
        {one.status for codes in ERROR_CODES.values() for one in codes if one.status < 500}
    ):
        if (kind := error_type(status)) != error_type(400):
            yield f"{status} {_code(kind)}"
    yield f"5xx {_code(error_type(500))}"


def _row(error: ErrorCode) -> tuple[str, ...]:
    status = str(error.status)
    if error.also:
        status += f", or {error.also}"
    words = _RETRIES[error.retry]
    return _code(error.code), status, error.occurs, error.remedy, words


def _refused() -> Iterator[tuple[str, ...]]:
    """Fields with the same remedy share a row. Codes other than the usual one are named."""
    names: dict[tuple[str, str], list[str]] = {}
    for each in REFUSED:
        code = "" if each.code == FIELD_NOT_ALLOWED else f"{_code(each.code)}: "
        names.setdefault((each.paths, f"{code}{each.remedy}"), []).append(each.what)
    return ((", ".join(alike), paths, remedy) for (paths, remedy), alike in names.items())


def _endpoints(clients: str) -> str:
    """The endpoints of these clients. Paths that do the same share a row."""
    paths: dict[tuple[str, str], list[str]] = {}
    for each in ENDPOINTS:
        if each.clients == clients:
            paths.setdefault((each.method, each.does), []).append(_code(each.path))
    rows = ((method, ", ".join(alike), does) for (method, does), alike in paths.items())
    return f"{_CLIENTS[clients]}\n\n{_table(('Method', 'Path', 'What it does'), rows)}"


def _headers(headers: Iterable[ClientHeader]) -> str:
    """Headers of the same meaning share a row, which has each of their types once."""
    names: dict[str, list[ClientHeader]] = {}
    for header in headers:
        names.setdefault(header.meaning, []).append(header)
    rows = (
        (
            ", ".join(_code(header.name) for header in alike),
            ", ".join(dict.fromkeys(header.type for header in alike)),
            meaning,
        )
        for meaning, alike in names.items()
    )
    return _table(("Header", "Value", "Meaning"), rows)


def _code(text: str) -> str:
    return f"`{text}`"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("--",) * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    print(reference(), end="")
