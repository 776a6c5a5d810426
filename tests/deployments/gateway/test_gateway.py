"""The gateway's own answers, over real HTTP; `test_relay.py` has the way to an engine."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from deployments.gateway.pool import serve_controller
from tests import contract
from tests.contract import Server
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.sentences import assert_sentences

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[tuple[Front, FakeEngine]]:
    engine = FakeEngine()
    async with gateway_before(engine, max_body_bytes=2000, request_timeout_s=60.0) as front:
        yield front, engine


@pytest.fixture
def engine(running: tuple[Front, FakeEngine]) -> FakeEngine:
    _, engine = running
    engine.bodies.clear()
    engine.headers.clear()
    return engine


@pytest.fixture
def front(running: tuple[Front, FakeEngine], engine: FakeEngine) -> Front:
    front, _ = running
    front.sees(engine)
    return front


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str, str | None, str]:
    """Its status, code, param and type; exactly OpenAI's shape."""
    error = (await answer.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    assert_sentences(error["message"])
    return answer.status, error["code"], error["param"], error["type"]


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_an_engine_keeps_its_contract_behind_a_gateway(
    check: Callable[[Server], Awaitable[None]], front: Front
) -> None:
    await check(Server(front.http, front.url, MODEL, front.headers))


async def test_an_unknown_model_is_a_404_that_names_the_known_ones(front: Front) -> None:
    async with front.post(model="large") as answer:
        assert await error_of(answer) == (404, "model_not_found", "model", "not_found_error")
        assert MODEL in (await answer.json())["error"]["message"]


async def test_a_very_long_model_name_is_shortened_in_the_error(front: Front) -> None:
    async with front.post(model="m" * 1500) as answer:
        assert len(await answer.read()) < 500


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": "Bearer "}, "missing_api_key"),
        ({"authorization": "Basic sk-test"}, "missing_api_key"),
        ({"authorization": "Bearer wrong"}, "invalid_api_key"),
    ],
)
async def test_a_request_without_a_valid_key_is_refused(
    front: Front, engine: FakeEngine, path: str, headers: dict[str, str], code: str
) -> None:
    async with front.http.post(front.url + path, json={"model": MODEL}, headers=headers) as answer:
        assert await error_of(answer) == (401, code, None, "authentication_error")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert not engine.bodies


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/antefix/status"])
async def test_no_information_is_returned_without_a_key(front: Front, path: str) -> None:
    async with front.http.get(front.url + path) as answer:
        assert answer.status == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", f"/v1/models/{MODEL}"),
        ("GET", "/antefix/status"),
        ("GET", "/antefix/decisions"),
        ("GET", "/antefix/requests/1"),
    ],
)
async def test_a_wrong_key_is_counted_on_every_path(front: Front, method: str, path: str) -> None:
    async def counted() -> float:
        await front.metrics()
        labels = {"pool": "", "kind": "invalid_api_key"}
        registry = front.gateway.parts.families.registry
        return registry.get_sample_value("antefix_errors_total", labels) or 0.0

    before, wrong = await counted(), {"authorization": "Bearer sk-guessed"}
    async with front.http.request(method, front.url + path, headers=wrong) as answer:
        assert answer.status == 401
    assert await counted() == before + 1


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/no/such", 404, "unknown_url"),
        ("POST", "/v1/chat/completion", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_a_wrong_address_or_method_returns_an_error_in_openais_shape(
    front: Front, method: str, path: str, status: int, code: str
) -> None:
    async with front.http.request(method, front.url + path, headers=front.headers) as answer:
        assert (await error_of(answer))[:2] == (status, code)


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/antefix", "antefix/"),
        ("/antefix?a=b&c", "antefix/?a=b&c"),
        ("/v1/models/", "../models"),
        ("/v1/chat/completions/", "../completions"),
        ("/antefix/requests/a%3Ab/", "../a%3Ab"),
    ],
)
async def test_the_location_of_a_redirect_ignores_the_host_header(
    front: Front, path: str, location: str | None
) -> None:
    headers = {**front.headers, "host": "elsewhere.example"}
    asked = front.http.get(front.url + path, headers=headers, allow_redirects=False)
    async with asked as answer:
        assert answer.headers.get("location") == location
        assert (answer.status == 307) == (location is not None)


async def test_the_docs_page_with_external_scripts_is_not_served(front: Front) -> None:
    async with front.get("/docs") as answer:
        assert await error_of(answer) == (404, "unknown_url", None, "not_found_error")


@pytest.mark.parametrize("asked", ["0", "-1", "nan", "inf", "soon", "60.1", ""])
async def test_an_invalid_or_too_long_timeout_is_rejected(front: Front, asked: str) -> None:
    async with front.post(headers={"x-antefix-timeout": asked}) as answer:
        told = await error_of(answer)
    assert told == (400, "invalid_timeout", "x-antefix-timeout", "invalid_request_error")


async def test_a_body_over_the_limit_is_a_413(front: Front, engine: FakeEngine) -> None:
    async with front.post(prompt="x" * 3000) as answer:
        assert (await error_of(answer))[:2] == (413, "body_too_large")
    assert not engine.bodies


async def test_a_malformed_body_is_a_400(front: Front, engine: FakeEngine) -> None:
    headers = {**front.headers, "content-type": "application/json"}
    url = front.url + "/v1/completions"
    async with front.http.post(url, data=b"{", headers=headers) as answer:
        assert (await error_of(answer))[:2] == (400, "invalid_json")
    assert not engine.bodies


async def test_a_gateway_is_live_without_any_replica(front: Front, engine: FakeEngine) -> None:
    front.sees()
    async with front.http.get(front.url + "/health/live") as answer:
        assert answer.status == 200


async def test_a_gateway_is_ready_when_every_pool_has_a_replica(front: Front) -> None:
    async with front.http.get(front.url + "/health/ready") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(("state", "expected"), [("STARTING", 503), ("RUNNING", 200)])
async def test_with_an_empty_board_ray_serve_decides_whether_a_pool_is_ready(
    front: Front, monkeypatch: pytest.MonkeyPatch, state: str, expected: int
) -> None:
    told = serve_controller.Status({"main": {state: 1}})
    monkeypatch.setattr(front.gateway.parts.controller.status, "_ask", lambda: told)
    monkeypatch.setattr(serve_controller, "FRESH_S", 0.0)
    front.sees()
    async with front.http.get(front.url + "/health/ready") as answer:
        assert answer.status == expected
        body = await answer.json()
    if expected == 503:
        assert body["waiting_for_pools"] == ["main"]
        assert "retry-after" in answer.headers


async def test_status_shows_each_replicas_predicted_ttft(front: Front, engine: FakeEngine) -> None:
    front.sees(engine)
    async with front.get("/antefix/status") as answer:
        pool = (await answer.json())["pools"]["main"]
    assert pool["replicas"][0]["predicted_ttft_s"] == 0.512


async def test_without_redis_status_shows_the_replicas_that_serve_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = {"gateway": {"g": "10.0.0.1"}, "main": {"r2": "10.0.0.2", "r1": "10.0.0.1"}}
    monkeypatch.setattr(serve_controller, "ask_running", lambda: running)
    async with gateway_before(FakeEngine()) as front:

        async def replicas() -> list[dict[str, Any]]:
            async with front.get("/antefix/status") as answer:
                shown: list[dict[str, Any]] = (await answer.json())["pools"]["main"]["replicas"]
            return shown

        (heard_of,) = await replicas()
        front.goes_blind()
        without_redis = await replicas()
    assert [replica["replica"] for replica in without_redis] == ["r1", "r2"]
    assert [replica["node_ip"] for replica in without_redis] == ["10.0.0.1", "10.0.0.2"]
    for replica in without_redis:
        assert replica.keys() == heard_of.keys()
        assert (replica["role"], replica["running"]) == ("unknown", None)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/no/such"])
@pytest.mark.parametrize("given", ["my.id-1", "a1b2-c3#42", "Root=1-67891233:ab+c~@d"])
async def test_a_request_keeps_the_id_it_came_with(
    front: Front, path: str, stream: bool, given: str
) -> None:
    async with front.post(path, headers={"x-request-id": given}, stream=stream) as answer:
        assert answer.headers.getall("x-request-id") == [given]


@pytest.mark.parametrize("given", ["", "no spaces", "x" * 129, "sl/ash"])
async def test_a_request_without_a_usable_id_gets_one(
    front: Front, engine: FakeEngine, given: str
) -> None:
    async with front.post(headers={"x-request-id": given}) as answer:
        made = answer.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", made)
    assert engine.headers[-1]["x-request-id"] == made


async def test_the_clients_key_stays_at_the_gateway(front: Front, engine: FakeEngine) -> None:
    async with front.post() as answer:
        assert answer.status == 200
    assert "authorization" not in engine.headers[-1]


async def test_a_model_card_shows_no_path(front: Front) -> None:
    async with front.get("/v1/models") as answer:
        (card,) = (await answer.json())["data"]
    assert card.keys() == {"id", "object", "created"}


async def test_models_are_listed_while_no_engine_answers() -> None:
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        await engine.stop()
        async with front.get(f"/v1/models/{MODEL}") as answer:
            assert answer.status == 200
            assert (await answer.json())["owned_by"] == "antefix"


async def test_the_api_description_has_only_what_a_gateway_serves(front: Front) -> None:
    async with front.http.get(front.url + "/openapi.json") as answer:
        paths = (await answer.json())["paths"]
    assert "/v1/chat/completions" in paths
    assert "/health/ready" in paths
    assert "/internal" not in paths
    for path, of in paths.items():
        for operation in of.values():
            told = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
            assert told == re.findall(r"{(\w+)}", path)


async def test_connections_rejected_before_the_key_check_are_counted(front: Front) -> None:
    counted = ("antefix_connections_rejected_total", "too_many_headers")
    before = (await front.metrics()).get(counted, 0.0)
    headers = {f"x-{number}": "" for number in range(200)}
    async with front.get("/v1/models", headers) as answer:
        assert answer.status == 431
    assert (await front.metrics())[counted] == before + 1
