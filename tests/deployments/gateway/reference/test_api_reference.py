"""docs/api.md is made from its tables, and those agree with the code in both directions."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import starlette.requests
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route

from deployments.gateway.api import request_headers, response_headers
from deployments.gateway.api.client_header import ClientHeader, headers_in
from deployments.gateway.api.endpoints import ENDPOINTS, GatewayEndpoint
from deployments.gateway.gateway import application
from deployments.gateway.inference import Inference
from deployments.gateway.reference.api_reference import reference
from deployments.gateway.reference.request_fields import READ, REFUSED_VALUES, RefusedValue
from deployments.wire.field_table import REFUSED, TAKEN
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.sentences import assert_sentences

PAGE = Path(__file__).parents[4] / "docs" / "api.md"
REQUEST_HEADERS = headers_in(vars(request_headers))
RESPONSE_HEADERS = headers_in(vars(response_headers))
REQUESTS = [
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
]
# What every HTTP server sends, and no client of Antefix has to know.
PLUMBING = {"content-type", "content-length", "transfer-encoding", "connection", "date", "host"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front() -> AsyncIterator[Front]:
    async with gateway_before(FakeEngine()) as front:
        yield front


def test_the_page_checked_in_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written.rstrip() == reference().rstrip(), f"{PAGE.name} is stale: run make reference"


@pytest.mark.parametrize("row", [*ENDPOINTS, *READ])
def test_a_row_is_explained_in_whole_sentences(row: tuple[str, ...]) -> None:
    assert_sentences(row[-1])


@pytest.mark.parametrize("header", [*REQUEST_HEADERS, *RESPONSE_HEADERS])
def test_a_header_is_explained_in_whole_sentences(header: ClientHeader) -> None:
    assert_sentences(header.meaning)


@pytest.mark.parametrize("row", list(REFUSED_VALUES), ids=lambda row: row.what)
def test_a_refused_value_names_a_remedy(row: RefusedValue) -> None:
    assert_sentences(row.remedy)


@pytest.mark.parametrize("headers", [REQUEST_HEADERS, RESPONSE_HEADERS], ids=["request", "answer"])
def test_no_header_is_listed_twice(headers: tuple[ClientHeader, ...]) -> None:
    assert len(set(headers)) == len(headers)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("method", "path", "headers", "body"), REQUESTS)
async def test_every_header_that_is_read_or_sent_is_listed(
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    headers: dict[str, str],
    body: dict[str, Any] | None,
) -> None:
    read: set[str] = set()

    class ReadHeaders(Headers):
        """Those that the gateway reads. The engine, in the same process, has another address."""

        def __getitem__(self, name: str) -> str:
            self._is_read(name)
            return super().__getitem__(name)

        def __contains__(self, name: object) -> bool:
            self._is_read(str(name))
            return super().__contains__(name)

        def _is_read(self, name: str) -> None:
            if (b"host", urlsplit(front.url).netloc.encode()) in self.raw:
                read.add(name.lower())

    monkeypatch.setattr(starlette.requests, "Headers", ReadHeaders)
    if body is not None:
        body |= {"model": "small", "messages": [{"role": "user", "content": "hello"}]}
    given = {**front.headers, **headers}
    url = front.url + path
    asked = front.http.request(method, url, json=body, headers=given, allow_redirects=False)
    async with asked as answer:
        sent = {name.lower() for name in answer.headers}
    assert sent - PLUMBING - set(RESPONSE_HEADERS) == set()
    assert read - PLUMBING - set(REQUEST_HEADERS) == set()
    if answer.status == 200 and method == "POST":
        assert {"authorization", "x-antefix-timeout"} <= read


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


def test_every_field_that_the_gateway_reads_is_among_all_fields() -> None:
    # a gateway refuses every field that is not among them
    listed = {name for row in TAKEN for name in row.names}
    listed |= {name for row in REFUSED for name in row.names}
    assert {name for row in READ for name in row.names} - listed == set()
