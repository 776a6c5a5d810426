"""Error codes and headers have one place that names them, and codes are explained."""

import ast

import pytest

from deployments.gateway.api import request_headers, response_headers
from deployments.gateway.api.client_header import headers_in
from deployments.gateway.reference.error_codes import ERROR_CODES
from deployments.process.error_code import ErrorCode
from tests.house import modules, room_of
from tests.sentences import assert_sentences
from tests.some import some

CODES = [error for errors in ERROR_CODES.values() for error in errors]


def test_no_code_is_listed_twice() -> None:
    assert len({error.name for error in CODES}) == len(CODES) > 60


@pytest.mark.parametrize("error", CODES, ids=lambda error: error.name)
def test_a_code_is_explained_in_whole_sentences(error: ErrorCode) -> None:
    assert_sentences(error.occurs)
    assert_sentences(error.remedy)


def test_gateways_name_codes_and_headers_by_their_constants() -> None:
    headers = headers_in(vars(request_headers)) + headers_in(vars(response_headers))
    ours = {header for header in headers if header.startswith(("x-antefix-", "x-ratelimit-"))}
    names = {error.name for error in CODES} | ours
    own = some(module for module in modules() if module.startswith("deployments.gateway"))
    assert not [
        f"{module}:{node.lineno}"
        for module in own
        if room_of(module) != "deployments/gateway/api"
        for node in ast.walk(ast.parse(modules()[module].read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
