"""docs/api.md, written from the tables in this package.

`python -m deployments.gateway.reference.api_reference` prints it; `make reference` puts it in its
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deployments.gateway.api import request_headers, response_headers
from deployments.gateway.api.client_header import (
    ClientHeader,
    headers_in,
)
from deployments.gateway.api.endpoints import ENDPOINTS
from deployments.gateway.api.request_codes import FIELD_NOT_ALLOWED
from deployments.gateway.checks.media_kwargs import IO_KEYS, PROCESSOR_KEYS
from deployments.gateway.checks.offered_tools import ANTHROPIC_TOOLS, BUILT_IN_TOOLS
from deployments.gateway.intake.api_errors import anthropic_type, error_type
from deployments.gateway.reference.error_codes import ERROR_CODES
from deployments.gateway.reference.items_read import items_read
from deployments.gateway.reference.request_fields import READ, REFUSED_VALUES
from deployments.process.error_code import ErrorCode, Retry
from deployments.wire.field_table import ALL, HARMLESS, REFUSED, TAKEN
from deployments.wire.inference_paths import GENERATING, INFERENCE_PATHS

_INTRODUCTION = """\
# The HTTP API

<!-- Written by `make reference` from deployments/gateway/api/ and reference/. Change it there. -->

Every gateway serves the OpenAI API and Anthropic's Messages API at `gateway.host` and
`gateway.port` of the [fleet file](fleet-file.md), without TLS. A gateway accepts only the fields in
[this list](#all-fields), which gives the cost and the limit of each field. It
[rejects](#fields-that-the-gateway-rejects) all other fields. The engine of the pool validates the
values that the gateway does not check.

Request and response bodies are JSON. The exceptions are [streams](#streams), the forms of
[audio](clients.md#audio) and the web UI. Metrics are served on [another port](metrics.md).

## Endpoints

Send the API key as `Authorization: Bearer KEY` or `x-api-key: KEY`. An operator's key has
[operator rights](keys.md#operator-rights), and its tenant has `operator: true` in the fleet file.
`GET` paths also answer `HEAD` requests. If the model of a pool does not support an endpoint, the
gateway returns `unsupported_endpoint`.
"""

_REQUEST_HEADERS = """\
## Request headers

Times are in seconds. The gateway ignores all other headers, and sends none of them to the engine.
"""

_RESPONSE_HEADERS = """\
## Response headers

The headers of a stream are sent with its first token, because most of them are known only then.
Every answer of an engine has `x-antefix-replica` and `x-antefix-model`.
"""

_READ = """\
## Fields that the gateway reads

`/openapi.json` has the engine's own description of all fields. `null` counts as absent. The
*generating* endpoints are chat completions, completions, responses and messages. `/rerank` and
`/score` also stand for the same paths under `/v1` and `/v2`.
"""

_ITEMS = """\
## Items that engines read

The gateway checks the items of each list. If no engine can read an item, the gateway rejects the
request, and the message names the first such item, for example `input[3].content[0]`. Replicas
complete all other items before vLLM reads them. So the gateway accepts every form that OpenAI's and
Anthropic's clients send:

- A null field of a message, an item, a part or a block counts as absent.
- In `input`, an assistant's message does not need `type`, `id`, `status` or `annotations`. The
  model sees all parts of an answer or of its reasoning, and it sees refusals as text. If a
  reasoning item has no content, the model sees its summaries.
- A `tool_result` with `is_error` begins with the line `Error:`.
- A tool without `parameters` has no parameters. Its arguments are an empty object.
"""

_REFUSED = """\
## Fields that the gateway rejects

The engine would ignore most of these fields silently, or serve them at the cost of other tenants. A
value that is null, empty, zero or false asks for nothing, so the gateway accepts it. In fields that
only gateways may send to engines, the gateway accepts only null. The error code is
`field_not_allowed`, unless a row names another code.

A field that is in none of the tables on this page is rejected in the same way. The error names the
field and the nearest name that exists.
"""

_ALL = """\
## All fields

This table shows what each field costs in the engine and the gateway, and what limits this cost.
`gateway.` stands for a setting in the [fleet file](fleet-file.md).
"""

_KEYS = """\
### Keys of media

A request may set these keys. Operators can set all other keys in the pool's `engine_args`.
"""

_HARMLESS = """\
## Fields without an effect

Current SDKs and agents send these fields. The gateway accepts them, but they change nothing.
"""

_LEFT_OUT = """\
## Tools that Antefix does not run

Most agents offer tools that only the provider of a model can run, such as a web search. The gateway
removes these tools from the request, and the model answers without them. The response header
`x-antefix-left-out-tools` and `left_out_tools` in the explanation list the types of these tools. If
`tool_choice` requires such a tool, the gateway rejects the request. `allowed_tools` as a
`tool_choice` works: the engine gets only the allowed tools.
"""

_LEFT_OUT_EXCEPTIONS = """\
If `engine_args` sets `tool_server`, engines run `web_search_preview`, `code_interpreter`,
`container` and `mcp` for responses, so the gateway does not remove these tools. If it removes a
tool search, the model sees the deferred tools from the beginning. It removes a custom tool whose
`format` is a grammar, and lists it as `custom`. vLLM supports only free text as the input of a
custom tool.
"""

_STREAMS = """\
## Streams

With `"stream": true`, the generating endpoints answer with server-sent events. The content type is
`text/event-stream`:

```
data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", ...}

data: [DONE]
```

- The gateway sends only whole events. Each event ends with an empty line.
- Chat completions and completions end with `data: [DONE]`. The events of responses and messages
  also have a line `event: TYPE`. Their last event is `response.completed` or `message_stop`.
- Blocks that begin with a colon are comments, which clients ignore. After the comment
  `: antefix-resumed continued`, the tokens come from another engine that resumed the answer, and
  they may differ.
- An error before the first token has an HTTP error status. A later error is the last event of the
  stream:

| API | Last event |
| -- | -- |
| chat completions, completions | `data: {"error": {"message", "type", "param", "code"}}` |
| responses | `event: error` with `type`, `code`, `message`, `param`, `sequence_number`, `error` |
| messages | `event: error` with `type`, `error`, `request_id` |

A stream that ends without one of these last events is incomplete. Send the request again. If an
answer that is not a stream is incomplete, the gateway closes the connection before the end of the
body.
"""

_ERRORS = """\
## Errors

```json
{"error": {"message": "Every replica is busy and the queue is full. Try again in 12 s.",
           "type": "rate_limit_error", "param": null, "code": "queue_full"}}
```

Errors of `/v1/messages` have the same structure as Anthropic's, plus `param` and `code`. The same
applies to endpoints that no engine serves, if the request has the header `anthropic-version`:

```json
{"type": "error", "request_id": "...", "error": {"type": "overloaded_error", "message": "...",
 "param": null, "code": "no_replica"}}
```

Programs should read `code`. The text of `message` describes the remedy and may change in any
version. `param` names the field or header that caused the error, or is `null`. The metric
`antefix_errors_total` counts errors by code. `type` depends on the status and on the structure:

{types}
The last column shows whether to send the same request again:

| Retry | Meaning |
| -- | -- |
| empty | The same request will fail again. |
| yes | The request may succeed. Wait a little longer after each failure. |
| `Retry-After` | The request may succeed after the number of seconds in this header. |
| `x-should-retry: false` | Clients should not retry automatically. The remedy comes first. |
| both | Gateways reject the same request until the time in `Retry-After` has passed. |
"""

_BEFORE_CONNECTIONS = """\
These errors occur before the gateway reads a key. The gateway closes the connection after them.
`antefix_connections_rejected_total` counts them by code.
"""

_CLIENTS = {
    "any key": "These endpoints accept any key:",
    "operators": "These endpoints require the key of an operator:",
    "any client": "These endpoints do not require a key:",
}

_WORDS = {
    "/v1/chat/completions": "chat completions",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "`count_tokens`",
    "/v1/embeddings": "embeddings",
    "/v1/audio/transcriptions": "transcriptions",
    "/v1/audio/translations": "translations",
}
_GROUPS = {
    "all": ALL,
    "generating": tuple(path for path in GENERATING if not INFERENCE_PATHS[path].is_form),
    "`/rerank`": ("/v2/rerank", "/v1/rerank", "/rerank"),
    "`/score`": ("/score", "/v1/score"),
}

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
        _headers(headers_in(vars(request_headers))),
        _RESPONSE_HEADERS,
        _headers(headers_in(vars(response_headers))),
        _READ,
        _table(("Fields", "Endpoints", "Use"), read),
        _REFUSED,
        _table(("Field", "Endpoints", "What to send instead"), _refused()),
        _LEFT_OUT,
        _table(("Types, in any version", "Endpoints"), _left_out()),
        _LEFT_OUT_EXCEPTIONS,
        _ITEMS,
        _table(("List", "Endpoints", "Types"), items_read()),
        _KEYS,
        _table(("Field", "Key", "Largest value"), _keys()),
        _HARMLESS,
        _table(
            ("Fields", "Endpoints", "Why"),
            ((_names(row.names), _endpoints_of(row.paths), row.why) for row in HARMLESS),
        ),
        _ALL,
        _table(
            ("Fields", "Endpoints", "Cost", "Limit"),
            ((_names(row.names), _endpoints_of(row.paths), row.costs, row.bound) for row in TAKEN),
        ),
        _STREAMS,
        _ERRORS.replace("{types}", _types()),
    ]
    for title, codes in ERROR_CODES.items():
        sections.append(f"### {title}\n")
        if title == "Connections":
            sections.append(_BEFORE_CONNECTIONS)
        header = ("Code", "Status", "Occurs when", "Remedy", "Retry")
        sections.append(_table(header, map(_row, codes)))
    return "\n".join(sections)


def _types() -> str:
    """The error types of each status with a separate type, and of all other statuses."""

    def types(status: int) -> tuple[str, str]:
        return _code(error_type(status)), _code(anthropic_type(status))

    usual = types(400), types(500)
    statuses = sorted({one.status for codes in ERROR_CODES.values() for one in codes})
    rows = [(str(status), *types(status)) for status in statuses if types(status) not in usual]
    rows += [("other 4xx", *usual[0]), ("other 5xx", *usual[1])]
    return _table(("Status", "`type` in OpenAI's structure", "`type` in Anthropic's"), rows)


def _row(error: ErrorCode) -> tuple[str, ...]:
    status = str(error.status)
    if error.also:
        status += f", or {error.also}"
    words = _RETRIES[error.retry]
    return _code(error.name), status, error.occurs, error.remedy, words


def _refused() -> Iterator[tuple[str, ...]]:
    """Fields and values with the same remedy share a row. Codes other than the usual one are
    named."""
    names: dict[tuple[str, str], list[str]] = {}
    for field in REFUSED:
        key = _endpoints_of(field.paths), field.remedy
        names.setdefault(key, []).extend(map(_code, field.names))
    for each in REFUSED_VALUES:
        code = "" if each.code == FIELD_NOT_ALLOWED else f"{_code(each.code.name)}: "
        names.setdefault((each.paths, f"{code}{each.remedy}"), []).append(each.what)
    return ((", ".join(same), paths, remedy) for (paths, remedy), same in names.items())


def _left_out() -> Iterator[tuple[str, ...]]:
    yield ", ".join(map(_code, BUILT_IN_TOOLS)), "chat completions, responses, `/tokenize`"
    names = ", ".join(map(_code, ANTHROPIC_TOOLS))
    yield f"{names}, unless the tool has an `input_schema`", "messages, `count_tokens`"


def _keys() -> Iterator[tuple[str, ...]]:
    """The keys of media. Those with the same largest value share a row."""
    for kind, keys in IO_KEYS.items():
        if keys:
            yield _code(f"media_io_kwargs.{kind}"), _names(keys), ""
    same: dict[int, list[str]] = {}
    for key, most in PROCESSOR_KEYS.items():
        same.setdefault(most, []).append(key)
    for most, names in same.items():
        largest = f"{most:,}" if most > 1 else "true or false"
        yield _code("mm_processor_kwargs"), _names(names), largest


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(_code, names))


def _endpoints_of(paths: Iterable[str]) -> str:
    """The endpoints as words, the same as in the other tables where there is a word."""
    left, words = dict.fromkeys(paths), []
    for word, group in _GROUPS.items():
        if left.keys() >= set(group):
            words.append(word)
            left = {path: None for path in left if path not in group}
    return ", ".join([*words, *(_WORDS.get(path) or _code(path) for path in left)])


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
            ", ".join(_code(header) for header in alike),
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
