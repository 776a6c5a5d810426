"""Answers errors in the shape of the request's API, with the request's id in the headers."""

from __future__ import annotations

import re
import uuid
from http import HTTPStatus
from typing import cast
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from deployments.gateway.api.load_codes import GATEWAY_ERROR
from deployments.gateway.api.request_codes import INVALID_REQUEST, METHOD_NOT_ALLOWED, UNKNOWN_URL
from deployments.gateway.api.request_headers import REQUEST_ID_HEADER
from deployments.gateway.api.response_headers import LOCATION
from deployments.gateway.intake.api_errors import ApiError, id_headers, shape_of

# Characters of a path in a message.
MOST_SHOWN = 200

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=+@~#-]{1,128}")


def answer_errors(app: Starlette) -> None:
    """Make the application answer every exception that its endpoints raise."""
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_unexpected)


def request_id_of(request: Request) -> str:
    """Return the client's request id if usable, otherwise a random one, the same on each call."""
    if not hasattr(request.state, "request_id"):
        given = request.headers.get(REQUEST_ID_HEADER, "")
        usable = _REQUEST_ID.fullmatch(given)
        request.state.request_id = given if usable else uuid.uuid4().hex
    return cast(str, request.state.request_id)


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request_id, shape = request_id_of(request), shape_of(request.url.path, request.headers)
    headers = {**error.headers, **id_headers(shape, request_id)}
    return JSONResponse(error.body(shape, request_id), status_code=error.status, headers=headers)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and (location := _with_or_without_slash(request)):
        return Response(status_code=307, headers={LOCATION: location})
    path = f"'{quote(request.url.path)[:MOST_SHOWN]}'"
    headers = dict(error.headers or {})
    if error.status_code == 404:
        message = f"{request.method} {path} does not exist. See /openapi.json for all paths."
        answer = ApiError(UNKNOWN_URL, message, headers=headers)
    elif error.status_code == 405:
        message = f"{path} does not accept {request.method}. See /openapi.json for its methods."
        answer = ApiError(METHOD_NOT_ALLOWED, message, headers=headers)
    else:
        status, phrase = error.status_code, HTTPStatus(error.status_code).phrase
        message = f"The request is not valid: {status} ({phrase}). Compare it with /openapi.json."
        answer = ApiError(INVALID_REQUEST, message, status=status, headers=headers)
    return await _answer_api_error(request, answer)


def _with_or_without_slash(request: Request) -> str | None:
    """Return a relative path to the endpoint with or without a final slash, or None.

    An absolute address would repeat a host that the client chose.
    """
    path, query = request.url.path, request.url.query
    rest, slash = path.rstrip("/"), path.endswith("/")
    scope = {**request.scope, "path": rest if slash else path + "/"}
    if all(route.matches(scope)[0] is Match.NONE for route in request.app.routes):
        return None
    name = quote(rest.rpartition("/")[2])
    return (f"../{name}" if slash else f"{name}/") + (f"?{query}" if query else "")


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    message = (
        "The gateway failed unexpectedly. Send the request again. If it fails again, report the id"
        " in the header x-request-id to the operators."
    )
    return await _answer_api_error(request, ApiError(GATEWAY_ERROR, message))
