"""vLLM's own routes get whole requests, and make one error of bad ones, however many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin

import httpx
import pytest
from fastapi import FastAPI, Form, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from deployments.wire.inference_paths import CHAT, INFERENCE_PATHS, RESPONSES
from deployments.wire.items.kinds import FORMS
from tests.deployments.prompt.all_shapes import KNOWN
from tests.deployments.wire.items.bad_items import LISTS, At, Counted
from tests.some import some

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ROUTERS = (
    *(f"openai.{api}.api_router" for api in ("chat_completion", "completion", "responses")),
    *(f"pooling.{task}.api_router" for task in ("embed", "classify", "pooling", "scoring")),
    *("anthropic.api_router", "serve.tokenize.api_router"),
)
# an error with its traceback; one of vLLM's own was a kilobyte, and there were 233 for each item
MOST_BYTES = 400_000


@pytest.fixture(scope="module")
def app() -> FastAPI:
    from vllm.exceptions import VLLMClientError

    from deployments.engine.vllm.api_server.request_bodies import read_whole

    app = FastAPI()
    for name in ROUTERS:
        app.include_router(import_module(f"vllm.entrypoints.{name}").router)
    read_whole(app)

    async def refused(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    app.add_exception_handler(VLLMClientError, refused)
    return app


def routes(app: FastAPI) -> dict[str, APIRoute]:
    return {
        route.path: route
        for route in app.routes
        if isinstance(route, APIRoute) and "POST" in route.methods and route.dependant.body_params
    }


@pytest.fixture(scope="module")
def read(app: FastAPI) -> dict[str, Callable[..., Any]]:
    """What makes vLLM's request of a body, by path."""
    return {
        path: lambda body, field=route.dependant.body_params[0]: field.validate(body)[0]
        for path, route in routes(app).items()
    }


def body_of(place: At, items: list[Any]) -> dict[str, Any]:
    needed = {"model": "m", "max_tokens": 5}
    prompts = {"input": "a"} if place.path == RESPONSES else {}
    return {**needed, **prompts, **place.among(items)}


@pytest.mark.parametrize("number", [1_000, 100_000])
@pytest.mark.parametrize("place", LISTS, ids=[f"{of.path} {of.field}" for of in LISTS])
def test_a_replica_reports_invalid_items_with_one_error_after_one_check(
    place: At, number: int, read: dict[str, Callable[..., Any]]
) -> None:
    from vllm.exceptions import VLLMValidationError

    for bad in some(place.bad):
        Counted.taken = 0
        body = body_of(place, Counted([bad] * number))
        tracemalloc.start()
        with pytest.raises(VLLMValidationError) as refused:
            read[place.path](body)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert refused.value.parameter == place.field
        assert (Counted.taken, most < MOST_BYTES) == (1, True)


# Items that `deployments.wire.items` takes, and vLLM's models do not.
PHASED = {"type": "message", "role": "user", "content": "a", "phase": "nope"}
BAD_FOR_VLLM: tuple[tuple[str, dict[str, Any], str], ...] = (
    (RESPONSES, {"input": [PHASED] * 1_000}, "input"),
    (RESPONSES, {"input": "a", "temperature": "hot"}, "temperature"),
    (RESPONSES, {"input": "a", "include": ["nope"] * 1_000}, "include"),
    (RESPONSES, {"input": "a", "tools": [{"type": "nope"}] * 1_000}, "tools"),
    (CHAT, {"messages": [], "logit_bias": {str(n): "x" for n in range(1_000)}}, "logit_bias"),
    (CHAT, {"messages": [], "tools": [{"type": "nope"}] * 1_000}, "tools"),
    ("/detokenize", {"tokens": [-1] * 1_000}, "tokens"),
)


@pytest.mark.parametrize(("path", "fields", "param"), BAD_FOR_VLLM)
def test_items_that_only_vllm_rejects_give_one_error_that_does_not_quote_them(
    path: str, fields: dict[str, Any], param: str, read: dict[str, Callable[..., Any]]
) -> None:
    from vllm.exceptions import VLLMValidationError

    secret = "of nobody else"
    with pytest.raises(VLLMValidationError) as refused:
        read[path]({"model": "m", "user": secret, **fields})
    assert refused.value.parameter == param
    assert len(str(refused.value)) < 1_000
    assert secret not in str(refused.value)


@pytest.mark.parametrize("name", ["ResponsesRequest", "ChatCompletionRequest"])
def test_vllms_models_stop_at_the_first_bad_item(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import SchemaValidator
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    from deployments.engine.vllm.api_server.request_bodies import stopping_early

    models = {"ResponsesRequest": ResponsesRequest, "ChatCompletionRequest": ChatCompletionRequest}
    schema = stopping_early(TypeAdapter(models[name]).core_schema)
    validator, field = SchemaValidator(schema, _use_prebuilt=False), "input"
    if name == "ChatCompletionRequest":
        field = "messages"

    def errors_of(number: int) -> int:
        with pytest.raises(ValidationError) as refused:
            validator.validate_python({"model": "m", field: [{}] * number})
        return refused.value.error_count()

    assert errors_of(1_000) == errors_of(1)


class Formed(BaseModel):
    """A request whose body is a form, like those of vLLM's transcriptions."""

    language: str
    temperature: float = 0.0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "'language': Field required."),
        ({"language": "en", "temperature": "hot"}, "'temperature': Input should be a valid number"),
    ],
)
async def test_the_error_of_a_form_is_a_sentence_and_not_a_dict(
    fields: dict[str, str], said: str
) -> None:
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler

    from deployments.engine.vllm.api_server.request_bodies import read_whole

    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.post("/formed")(_take)
    init_exception_handler(app)
    read_whole(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        answer = await client.post("/formed", data=fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].startswith(said)
    assert "{" not in error["message"]
    assert error["param"] == said.split("'")[1]


async def _take(formed: Annotated[Formed, Form()]) -> dict[str, str]:
    return {"language": formed.language}


# The first has a field that engines ignore; vLLM's own models refuse the others.
REFUSED = ("chat: more fields in a message", "tools: no tools", "completion: an empty prompt")


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - set(REFUSED)))
def test_vllm_accepts_every_shape_that_a_gateway_reads(
    name: str, read: dict[str, Callable[..., Any]]
) -> None:
    path, fields = KNOWN[name]
    assert read[path]({"max_tokens": 5, **fields}) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_vllm_rejects_are_known(name: str, read: dict[str, Callable[..., Any]]) -> None:
    from vllm.exceptions import VLLMClientError

    path, fields = KNOWN[name]
    with pytest.raises(VLLMClientError):
        read[path](fields)


FUNCTION, CHOSEN = {"type": "function", "name": "now"}, {"name": "now"}


@pytest.mark.parametrize("shape", [{}, {"parameters": None}, {"parameters": {}}])
@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_call_of_a_tool_without_parameters_has_an_empty_object(
    path: str, choice: str, shape: dict[str, Any], read: dict[str, Callable[..., Any]]
) -> None:
    """vLLM's constraint let any JSON value pass, such as a string."""
    from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag
    from vllm.tool_parsers.tool_strict_level import ToolStrictLevel
    from xgrammar import Grammar
    from xgrammar.testing import _is_grammar_accept_string as accepts

    body: dict[str, Any] = {"model": "m", "input": "Hi.", "tools": [{**FUNCTION, **shape}]}
    named: Any = FUNCTION
    if path == CHAT:
        named = {"type": "function", "function": CHOSEN}
        tools = [{"type": "function", "function": {**CHOSEN, **shape}}]
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "tools": tools}
    request = read[path]({**body, "tool_choice": named if choice == "named" else choice})
    tag = get_model_structural_tag(
        "hermes",
        request.tools,
        request.tool_choice,
        reasoning=False,
        strict_level=ToolStrictLevel.PARAMETER,
    )
    grammar = Grammar.from_structural_tag(tag)

    def allowed(arguments: str) -> bool:
        call = f'{{"name": "now", "arguments": {arguments}}}'
        return bool(accepts(grammar, f"<tool_call>\n{call}\n</tool_call>"))

    assert allowed("{}")
    assert not allowed('"n"')


@pytest.mark.parametrize("name", ["truncation", "background"])
def test_a_field_that_a_response_cannot_repeat_is_a_client_error(name: str) -> None:
    """A replica reads a null as absent; vLLM itself fails on it at the end of the answer."""
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    from deployments.engine.vllm.api_server.streams import why_no_echo

    assert why_no_echo(ResponsesRequest(input="Hi.")) is None
    mistake = why_no_echo(ResponsesRequest(input="Hi.", **{name: None}))
    assert mistake is not None
    assert getattr(mistake, "parameter", None) == name


def lists_in(annotation: Any) -> bool:
    """Return whether a field may have a list or an object of which vLLM checks each value."""
    if get_origin(annotation) in (list, dict):
        return any(each is not Any for each in get_args(annotation)[-1:])
    return any(lists_in(each) for each in get_args(annotation))


# Objects whose values are few, or objects without a form.
FEW = {"media_io_kwargs", "vllm_xargs", "data"}


def test_every_list_of_vllms_requests_has_a_form(app: FastAPI) -> None:
    """A list that vLLM adds fails here: give it a form in `deployments.wire.items.kinds`."""

    def fields_of(model: Any) -> Iterator[tuple[str, Any]]:
        for part in get_args(model):
            yield from fields_of(part)
        for name, field in getattr(model, "model_fields", {}).items():
            yield name, field.annotation

    found = {
        (path, name)
        for path, route in routes(app).items()
        if path in INFERENCE_PATHS
        for name, annotation in fields_of(route.dependant.body_params[0].field_info.annotation)
        if lists_in(annotation) and name not in FEW
    }
    assert found
    assert sorted(each for each in found if each[1] not in FORMS[each[0]]) == []


async def test_a_body_reaches_vllm_completed_over_http(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        asked = {"model": "m", "input": [{}] * 1_000}
        answer = await http.post(RESPONSES, json=asked)
        assert answer.status_code == 400
        assert "'input[0]' has no 'type'" in answer.text
        assert len(answer.text) < 500
