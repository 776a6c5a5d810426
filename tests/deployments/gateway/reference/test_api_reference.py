"""docs/api.md is made from its tables, and those agree with the code in both directions."""

import ast
import re
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.routing import BaseRoute, Route

from deployments.gateway.gateway import application
from deployments.gateway.inference import Inference
from deployments.gateway.reference.api_reference import reference
from deployments.gateway.reference.client_headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    ClientHeader,
)
from deployments.gateway.reference.endpoints import ENDPOINTS, GatewayEndpoint
from deployments.gateway.reference.error_codes import ERROR_CODES
from deployments.gateway.reference.request_fields import READ, REFUSED, RefusedField
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.house import modules
from tests.sentences import assert_sentences

PAGE = Path(__file__).parents[4] / "docs" / "api.md"
REQUEST_NAMES = {header.name for header in REQUEST_HEADERS}
RESPONSE_NAMES = {header.name for header in RESPONSE_HEADERS}
# What every HTTP server sends, and no client of Antefix has to know.
PLUMBING = {"content-type", "content-length", "transfer-encoding", "connection", "date"}
# Starlette's own.
NOT_IN_OUR_CODE = {"allow"}


def trees(*packages: str) -> Iterator[tuple[str, ast.AST]]:
    """The modules of these packages by name, except the tables themselves."""
    for module, path in modules().items():
        if module.startswith(packages) and not module.startswith("deployments.gateway.reference"):
            yield module, ast.parse(path.read_text())


def literals(*packages: str) -> set[str]:
    """Every string literal of these packages. Of an f-string, what stands before a value."""
    return {
        node.value
        for _, tree in trees(*packages)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def stands_for(literal: str, name: str) -> bool:
    """`x-ratelimit-limit-` is where the names of several headers begin."""
    return name == literal or (literal.endswith("-") and name.startswith(literal))


def read_headers() -> set[str]:
    """Every header that a gateway looks up by `headers.get`."""
    found = set()
    for module, tree in trees("deployments.gateway"):
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Attribute(value=of, attr="get"), [name, *_]):
                    if ast.unparse(of).split(".")[-1] == "headers":
                        found.add(constant(module, name))
    return found - {None}


def constant(module: str, node: ast.AST) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name.isupper():
            return getattr(import_module(module), name)
    return None


def read_fields() -> set[str]:
    """Every field of a body that a gateway looks up by its literal name."""
    found = set()
    for _, tree in trees("deployments.gateway"):
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Attribute(value=of, attr="get"), [ast.Constant(str(name)), *_]):
                    if ast.unparse(of).split(".")[-1] == "fields":
                        found.add(name)
                case ast.Call(_, [ast.Name("fields"), ast.Constant(str(name)), *_]):
                    found.add(name)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front() -> AsyncIterator[Front]:
    async with gateway_before(FakeEngine()) as front:
        yield front


def test_the_page_checked_in_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written.rstrip() == reference().rstrip(), f"{PAGE.name} is stale: run make reference"


@pytest.mark.parametrize("row", [*ENDPOINTS, *REQUEST_HEADERS, *RESPONSE_HEADERS, *READ])
def test_a_row_is_explained_in_whole_sentences(row: tuple[str, ...]) -> None:
    assert_sentences(row[-1])


@pytest.mark.parametrize("row", list(REFUSED), ids=lambda row: row.what)
def test_a_refused_field_names_a_code_and_a_remedy(row: RefusedField) -> None:
    assert row.code in {error.code for errors in ERROR_CODES.values() for error in errors}
    assert_sentences(row.remedy)


@pytest.mark.parametrize("headers", [REQUEST_HEADERS, RESPONSE_HEADERS], ids=["request", "answer"])
def test_no_header_is_listed_twice(headers: tuple[ClientHeader, ...]) -> None:
    assert len({header.name for header in headers}) == len(headers)


def test_every_antefix_header_in_the_gateways_code_is_listed() -> None:
    named = literals("deployments.gateway", "deployments.process")
    ours = {each for each in named if re.fullmatch(r"x(-[a-z0-9]+)+-?", each)}
    assert {"x-ratelimit-limit-", "x-request-id", "x-antefix-timeout"} <= ours
    listed = REQUEST_NAMES | RESPONSE_NAMES
    assert [each for each in ours if not any(stands_for(each, name) for name in listed)] == []


def test_every_header_that_the_gateway_reads_is_listed() -> None:
    read = read_headers()
    assert {"authorization", "x-antefix-timeout", "if-none-match"} <= read
    assert read - wire_headers() - REQUEST_NAMES - RESPONSE_NAMES == set()


def wire_headers() -> set[str]:
    """Those between gateways and replicas."""
    module = import_module("deployments.wire.headers")
    return {value for name, value in vars(module).items() if name.endswith("_HEADER")}


def test_every_listed_header_is_in_the_code() -> None:
    places = "deployments.gateway", "deployments.process", "deployments.wire", "deployments.fleet"
    named = literals(*places, "observability.request_record")
    beginnings = [each for each in named if re.fullmatch(r"x(-[a-z]+)+-", each)]
    listed = (REQUEST_NAMES | RESPONSE_NAMES) - NOT_IN_OUR_CODE - named
    assert [name for name in listed if not any(stands_for(each, name) for each in beginnings)] == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("POST", "/v1/chat/completions", {}, {"stream": False}),
        ("POST", "/v1/chat/completions", {}, {"stream": True}),
        ("POST", "/v1/chat/completions", {"authorization": ""}, {}),
        ("POST", "/v1/chat/completions", {"content-encoding": "br"}, {}),
        ("GET", "/v1/chat/completions", {}, None),
        ("GET", "/no/such", {}, None),
        ("GET", "/v1/models/", {}, None),
        ("GET", "/antefix", {}, None),
        ("GET", "/antefix/", {}, None),
        ("GET", "/", {"accept": "text/html"}, None),
        ("GET", "/health/live", {}, None),
        ("GET", "/antefix/status", {}, None),
    ],
)
async def test_every_header_of_an_answer_is_listed(
    front: Front, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None
) -> None:
    if body is not None:
        body |= {"model": "small", "messages": [{"role": "user", "content": "hello"}]}
    given = {**front.headers, **headers}
    url = front.url + path
    asked = front.http.request(method, url, json=body, headers=given, allow_redirects=False)
    async with asked as answer:
        sent = {name.lower() for name in answer.headers}
    assert sent - PLUMBING - RESPONSE_NAMES == set()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_page_has_every_endpoint_and_no_other(front: Front) -> None:
    parts = front.gateway.parts
    routes = application(parts, Inference(parts)).routes
    served = [endpoint for route in routes for endpoint in endpoints_of(route)]
    assert set(served) == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}


def endpoints_of(route: BaseRoute) -> Iterator[tuple[str, str]]:
    """Methods and paths, as the page writes them."""
    assert isinstance(route, Route) and route.methods
    path = re.sub(r"{(\w+):path}", r"{\1}", route.path)
    path = re.sub(r"^/antefix/assets/.+", "/antefix/assets/{file}", path)
    yield from ((method, path) for method in route.methods if method != "HEAD")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
async def test_an_endpoint_asks_for_a_key_where_the_page_says_so(
    front: Front, endpoint: GatewayEndpoint
) -> None:
    url = front.url + re.sub(r"{\w+}", "x", endpoint.path)
    async with front.http.request(endpoint.method, url) as answer:
        assert (answer.status == 401) == (endpoint.clients != "any client")


def test_every_field_that_the_gateway_looks_up_is_listed() -> None:
    read = read_fields()
    assert {"model", "stream", "service_tier", "vllm_xargs"} <= read
    rows = " ".join(row.what for row in REFUSED)
    listed = {name for row in READ for name in row.names} | set(re.findall(r"`(\w+)`", rows))
    assert read - listed == set()


def test_every_listed_field_is_in_the_code() -> None:
    named = literals("deployments.gateway", "deployments.prompt", "deployments.wire")
    assert [name for row in READ for name in row.names if name not in named] == []
