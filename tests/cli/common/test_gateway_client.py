"""What the gateway's errors become in a terminal."""

from collections.abc import Iterator

import pytest

from cli.common.gateway_client import GatewayClient, GatewayError
from cli.common.hints import LOGS_ELSEWHERE
from tests.cli.fake_gateway import KEY, FakeGateway, running


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with running() as fake:
        yield fake


def failed_load(gateway: FakeGateway, status: int, message: str) -> GatewayError:
    gateway.adapter_error = status, message
    with pytest.raises(GatewayError) as failed:
        GatewayClient(gateway.base_url, KEY).load_adapter({})
    assert failed.value.status == status
    return failed.value


def test_the_advice_of_an_outage_is_shown_together_with_the_logs(gateway: FakeGateway) -> None:
    error = failed_load(gateway, 503, "The pool a has no replica. Try again in 5 s.")
    assert error.message.endswith("HTTP 503: The pool a has no replica. Try again in 5 s")
    assert error.remedy == LOGS_ELSEWHERE


def test_a_message_of_three_sentences_stays_in_one_piece(gateway: FakeGateway) -> None:
    said = "The tenant a may use 9 tokens. Too few are left. Try again in 5 s."
    error = failed_load(gateway, 429, said)
    assert error.message.endswith(said.removesuffix("."))
    assert error.remedy == ""


def test_the_logs_are_the_remedy_of_a_message_without_advice(gateway: FakeGateway) -> None:
    assert failed_load(gateway, 400, "wrong").remedy == LOGS_ELSEWHERE


def test_a_long_message_is_shown_whole(gateway: FakeGateway) -> None:
    said = f"No such model. Use one of: {', '.join(map(str, range(2000)))}"
    assert failed_load(gateway, 404, said).message.endswith(said)
