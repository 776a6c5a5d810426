"""Strategies of requests that no client should send, or that few do."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.every_field.asking import LEAST
from tests.every_field.values import VALUES
from tests.wrong_requests.asking import WrongRequest, json_request

JSON_TYPE = (b"content-type", b"application/json")
PATHS = [*LEAST, "/v1/embeddings"]
# The paths that generate tokens, with the fields that limit them: a request has at least one.
LENGTHS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}
CHEAP_TOKENS = 3
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"]
ODD: list[Any] = [
    *(10**30, -(2**63), 2**63 - 1, 1e308, -0.0, float("nan"), float("inf")),
    *("", "\x00", "\ud800", "\u202e", "NaN", "\r\n", "x" * 5000, "<|im_start|>system"),
    *([], {}, [[]], [{}], [None], {"": None}, {"a" * 300: 1}),
]


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(ODD)
    | st.integers(1, 400).map(_nested),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def cheap(path: str, body: Any, model: str) -> Any:
    """Return the body with few tokens and a known model; wrong values of either stay."""
    if not isinstance(body, dict):
        return body
    body = {"model": model, **body}
    if body["model"] is None:
        body["model"] = model
    lengths = LENGTHS.get(path, ())
    for name in (*lengths, "min_tokens", "n"):
        value = body.get(name)
        if isinstance(value, int | float) and CHEAP_TOKENS < value <= 100_000:
            body[name] = CHEAP_TOKENS
    if lengths and all(body.get(name) is None for name in lengths):
        body[lengths[0]] = CHEAP_TOKENS
    return body


@st.composite
def wrong_bodies(draw: st.DrawFn, model: str) -> WrongRequest:
    """The least request, with fields of any kind of value."""
    path = draw(st.sampled_from(PATHS))
    least = json.loads(json.dumps(LEAST.get(path, {"input": "PROMPT"})).replace("PROMPT", "Hi."))
    names = st.sampled_from(sorted(VALUES)) | st.text(max_size=8)
    for name in draw(st.lists(names, max_size=4, unique=True)):
        known = [st.sampled_from(VALUES[name])] if name in VALUES else []
        least[name] = draw(st.one_of(*known, any_json))
    for name in draw(st.lists(st.sampled_from(sorted(least)), max_size=1)) if least else ():
        del least[name]
    body = cheap(path, least, model) if draw(st.integers(0, 9)) else draw(any_json)
    return json_request(path, body)


@st.composite
def wrong_bytes(draw: st.DrawFn, model: str) -> WrongRequest:
    """A body that was damaged on its way, or is in another encoding, or says a thing twice."""
    path = draw(st.sampled_from(PATHS))
    least = json.dumps(LEAST.get(path, {"input": "PROMPT"}) | {"model": model}).encode()
    at = draw(st.integers(0, len(least)))
    noise = draw(st.binary(max_size=12))
    damaged = draw(
        st.sampled_from(
            [
                least[:at],
                least[:at] + noise + least[at:],
                least[:at] + noise + least[at + len(noise) :],
                least.decode().encode("utf-16"),
                b"\xef\xbb\xbf" + least,
                least + least,
                least[:-1] + b", " + least[1:],
                least[:-1] + b', "max_tokens": 2, "max_tokens": "a", "stream": 1}',
                least + b"\x00" * 10,
                noise,
                b"[" * 5000,
                b'{"a":' * 5000,
                b"1" * 5000,
            ]
        )
    )
    return json_request(path, damaged)


def _header_value(text: str) -> bytes:
    return bytes(byte for byte in text.encode() if byte >= 32 and byte != 127)


_NAMES = [
    *(b"x-request-id", b"x-antefix-timeout", b"x-antefix-policy", b"x-antefix-priority"),
    *(b"x-antefix-overflow", b"x-session-id", b"traceparent", b"tracestate", b"baggage"),
    *(b"content-type", b"accept", b"accept-encoding", b"content-encoding", b"authorization"),
    *(b"x-api-key", b"cookie", b"range", b"if-none-match", b"x-forwarded-for", b"forwarded"),
    *(b"upgrade", b"te", b"origin", b"access-control-request-method", b"host", b"x-antefix-load"),
]
_VALUES = [
    *(b"", b"0", b"-1", b"nan", b"inf", b"1e999", b"0.5", b"\xff\xfe", b"a,b;c=d", b"*", b"\t"),
    *(b"gzip", b"identity", b"chunked", b"websocket", b"h2c", b"application/json; charset=utf-7"),
    *(b"text/plain", b"multipart/form-data; boundary=", b"Bearer", b"Bearer ", b"Basic Og=="),
    *(b"Bearer \xf0\x9f", b"Bearer a b", b"only", b"never", b"batch", b"interactive", b"flex"),
    *(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"00-0-0-0", b"a" * 2000),
]


@st.composite
def wrong_headers(draw: st.DrawFn, model: str) -> WrongRequest:
    """A sound body under headers of all kinds, some of them twice."""
    path = draw(st.sampled_from(PATHS))
    least = json.loads(json.dumps(LEAST.get(path, {"input": "PROMPT"})).replace("PROMPT", "Hi."))
    values = st.sampled_from(_VALUES) | st.text(max_size=30).map(_header_value)
    headers = draw(st.lists(st.tuples(st.sampled_from(_NAMES), values), min_size=1, max_size=6))
    body = json.dumps(cheap(path, least, model)).encode()
    typed = () if draw(st.booleans()) else (JSON_TYPE,)
    return WrongRequest("POST", path.encode(), (*typed, *headers), body)


@st.composite
def wrong_targets(draw: st.DrawFn) -> WrongRequest:
    """Any method, for any path and query."""
    begins = [*PATHS, "/v1/models", "/v1/models/", "/antefix/requests/", "/antefix/decisions", "/"]
    begins += ["/antefix/status", "/antefix/", "/antefix/page.js", "/health/", "/metrics"]
    begins += ["/health/live", "/health/ready", "/openapi.json", "", "//", "/v1//", "*", "/../.."]
    begins += ["http://elsewhere.example.com/v1/models", "/v1/models/%2e%2e%2f", "/%00", "/%ff%fe"]
    rest = st.sampled_from(["", "/", "//", "?", "?limit=0", "?limit=1", "?limit=1e9", "?limit="])
    rest |= st.text(max_size=20).map(lambda text: quote(text, safe="/?=&;:@!", errors="replace"))
    target = draw(st.sampled_from(begins)) + draw(rest) + draw(rest)
    method = draw(st.sampled_from(METHODS))
    return WrongRequest(method, target.encode() or b"/", (JSON_TYPE,))


def wrong_requests(model: str) -> st.SearchStrategy[WrongRequest]:
    bodies = wrong_bodies(model)
    return bodies | bodies | wrong_bytes(model) | wrong_headers(model) | wrong_targets()


def of_document(document: dict[str, Any], model: str) -> list[st.SearchStrategy[WrongRequest]]:
    """What an OpenAPI document allows and what it forbids, with a key, for each of its operations
    that takes anything."""
    schema = schemathesis.openapi.from_dict(document)
    operations = [schema[path][method] for path, of in document["paths"].items() for method in of]
    return [
        operation.as_strategy(generation_mode=mode).map(lambda case: _written(case, model))
        for operation in operations
        if operation.body or operation.path_parameters
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    ]


def _written(case: Case[Any], model: str) -> WrongRequest:
    given = case.as_transport_kwargs(base_url="http://here")
    body = given.pop("json", None)
    prepared = requests.Request(**given).prepare()
    headers = tuple(
        (name.lower().encode(), _header_value(str(value)))
        for name, value in prepared.headers.items()
        if name.lower() not in ("connection", "content-length", "authorization")
    )
    data = prepared.body or b""
    if body is not None:
        data = json.dumps(cheap(case.operation.path, body, model))
    assert isinstance(data, str | bytes), "of JSON, nothing is streamed"
    target = prepared.path_url.encode()
    written = data.encode() if isinstance(data, str) else data
    return WrongRequest(str(prepared.method), target, headers, written)
