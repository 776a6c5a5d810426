"""The table of error codes and the code that makes errors agree, in both directions."""

import ast
from collections import defaultdict
from http import HTTPStatus
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from deployments.gateway.reference.error_code import ErrorCode
from deployments.gateway.reference.error_codes import ERROR_CODES
from deployments.process.connection_refusals import CODES
from tests.house import modules
from tests.sentences import assert_sentences

TABLE = {error.code: error for errors in ERROR_CODES.values() for error in errors}


class Made(NamedTuple):
    """One place in the product that makes an error. `code`, `status`: None where they are computed.
    `waits`: the answer has Retry-After; `stops`: it has x-should-retry."""

    place: str
    code: Any
    status: int | None
    waits: bool
    stops: bool


def value_of(module: str, node: ast.AST | None) -> Any:
    """Of a literal, a constant of the module or an HTTPStatus; otherwise None."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name.isupper():
            return getattr(import_module(module), name)
        case ast.Attribute(ast.Name("HTTPStatus"), name):
            return HTTPStatus[name].value
    return None


def made_by(module: str, call: ast.Call) -> Made | None:
    """What a call makes; None: no error of a client."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    match call:
        case ast.Call(ast.Name("ApiError"), [status, *_]):
            code = given.get("code")
            stops = "NO_RETRY" in ast.unparse(given.get("headers", ast.Constant(None)))
            waits = "retry_after" in given
        case ast.Call(ast.Name("ConnectionRefusal"), [status, code, *_]):
            # `ConnectionRefusal.answer` adds the header by the status
            waits, stops = value_of(module, status) == HTTPStatus.SERVICE_UNAVAILABLE, False
        case _:
            return None
    place = f"{module}:{call.lineno}"
    return Made(place, value_of(module, code), value_of(module, status), waits, stops)


MADE = [
    made
    for module, path in modules().items()
    if module.startswith(("deployments.gateway", "deployments.process"))
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Call) and (made := made_by(module, node)) is not None
]
MADE_BY_CODE = defaultdict(list)
for each in MADE:
    MADE_BY_CODE[each.code].append(each)


def test_a_code_is_a_literal_or_a_constant_where_its_error_is_made() -> None:
    assert [made.place for made in MADE if not isinstance(made.code, str)] == []


def test_the_table_has_every_code_and_no_other() -> None:
    assert set(TABLE) == set(MADE_BY_CODE)


def test_no_code_is_listed_twice() -> None:
    assert len(TABLE) == sum(map(len, ERROR_CODES.values()))


@pytest.mark.parametrize("made", MADE, ids=[f"{made.place} {made.code}" for made in MADE])
def test_an_error_has_the_status_that_the_table_says(made: Made) -> None:
    error = TABLE[made.code]
    assert made.status == error.status or (made.status is None and error.also)


@pytest.mark.parametrize("error", TABLE.values(), ids=TABLE)
def test_an_answer_has_the_headers_for_retries_that_the_table_says(error: ErrorCode) -> None:
    made = MADE_BY_CODE[error.code]
    assert {each.waits for each in made} == {"Retry-After" in error.retry}
    assert any(each.stops for each in made) == ("stop" in error.retry)


@pytest.mark.parametrize("error", TABLE.values(), ids=TABLE)
def test_a_code_is_explained_in_whole_sentences(error: ErrorCode) -> None:
    assert_sentences(error.occurs)
    assert_sentences(error.remedy)


def test_the_codes_of_connections_are_those_that_are_counted() -> None:
    assert {error.code for error in ERROR_CODES["Connections"]} == set(CODES)
