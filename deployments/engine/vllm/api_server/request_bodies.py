"""The bodies of requests on their way to vLLM's models: completed, checked, and with one error.

pydantic makes all errors of a body before it reports any, in the replica's event loop: of a union
such as a response's input, hundreds for each bad item. Here a body is checked by
`deployments.wire.items` first, and vLLM's own models stop at the first bad item of each list and
object. A client gets one error, which does not quote the body. Sources: `ModelField` in
fastapi/_compat/v2.py, and `validation_exception_handler` in vllm/entrypoints/serve of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator
from starlette.requests import Request
from starlette.responses import Response
from vllm.entrypoints.serve.exception_handling.handlers.vllm_error import vllm_error_handler
from vllm.exceptions import VLLMClientError, VLLMValidationError

from deployments.wire.items.completed import completed
from deployments.wire.items.kinds import first_fault

# Schemas of values that have several others.
_HOLDERS = ("list", "dict", "set", "frozenset", "tuple")
# Members of unions, in the place of an error.
_TYPES = ("str", "int", "float", "bool", "bytes", "list", "dict", "none", "nullable")


def read_whole(app: FastAPI) -> None:
    """Install in vLLM's application, whose routes are complete."""
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    for route in (route for route in app.routes if isinstance(route, APIRoute)):
        for field in route.dependant.body_params:
            if not isinstance(field.field_info, Form):
                read = reader(route.path, field._type_adapter)
                vars(field)["validate"] = _validating(read)


def _validating(read: Callable[[Any], Any]) -> Callable[..., tuple[Any, list[Any]]]:
    def validate(body: Any, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        return read(body), []

    return validate


def reader(path: str, adapter: TypeAdapter[Any]) -> Callable[[Any], Any]:
    """Return a function from a parsed body to vLLM's request, which raises VLLMClientError."""
    validator = SchemaValidator(stopping_early(adapter.core_schema), _use_prebuilt=False)

    def read(body: Any) -> Any:
        if isinstance(body, dict):
            if (fault := first_fault(path, body)) is not None:
                raise VLLMValidationError(fault.message, parameter=fault.field)
            body = completed(path, body)
        try:
            return validator.validate_python(body, from_attributes=True)
        except ValidationError as error:
            raise one_of(error) from None

    return read


def stopping_early(schema: Any) -> Any:
    """Return a pydantic schema that stops at the first bad item of each list and object."""
    if isinstance(schema, list):
        return [stopping_early(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {
        name: each if name in ("metadata", "serialization") else stopping_early(each)
        for name, each in schema.items()
    }
    return {**copied, "fail_fast": True} if copied.get("type") in _HOLDERS else copied


def one_of(error: ValidationError) -> VLLMClientError:
    """Return the most telling of pydantic's errors: vLLM's own, or the one that is nested most."""
    return _most_telling(error.errors(include_url=False, include_input=False))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Answer FastAPI's own errors, such as those of forms. vLLM would show Python's dicts."""
    assert isinstance(error, RequestValidationError)
    errors = [each for each in error.errors() if isinstance(each, dict)]
    if not errors:
        mistake: VLLMClientError = VLLMValidationError("The request is invalid.")
    else:  # the first name of a place is the request's part: its body
        mistake = _most_telling([{**each, "loc": each["loc"][1:]} for each in errors])
    return await vllm_error_handler(request, mistake)  # type: ignore[no-any-return]


def _most_telling(errors: Sequence[Any]) -> VLLMClientError:
    for each in errors:
        if isinstance(own := each.get("ctx", {}).get("error"), VLLMClientError):
            return own
    # of a union's members, one that takes the JSON type says more
    found = max(errors, key=lambda each: (not each["type"].endswith("_type"), len(each["loc"])))
    named = [str(name) for name in found["loc"] if _is_in_the_body(name)]
    said = found["msg"].removeprefix("Value error, ")[:1000]
    if not named:
        return VLLMValidationError(said)
    return VLLMValidationError(f"{'.'.join(named)!r}: {said}.", parameter=named[0])


def _is_in_the_body(name: int | str) -> bool:
    """Return whether a part of an error's place is a name or an index, not a union's member."""
    if isinstance(name, int):
        return True
    return name.isidentifier() and name == name.lower() and name not in _TYPES
