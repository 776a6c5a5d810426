"""Values that not every client may set are refused by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.checks.engine_fields import refuse_engine_fields
from deployments.gateway.intake.api_errors import ApiError
from router.board.recent import Placed
from tests.every_field.values import CHAT, COMPLETIONS, RESPONSES
from tests.fakes.engine import FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, OTHER_TENANT, gateway_before
from tests.sentences import assert_sentences

EMBEDDINGS = "/v1/embeddings"


def refuse(fields: dict[str, Any], path: str = CHAT, may_prioritize: bool = False) -> None:
    refuse_engine_fields(path, fields, ["steer"], may_prioritize)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"vllm_xargs": {"kv_cache_report_mode": "full"}}, "vllm_xargs"),
        (CHAT, {"vllm_xargs": {"steer": 1, "other": 1}}, "vllm_xargs"),
        (CHAT, {"vllm_xargs": {"": 1}}, "vllm_xargs"),
        (CHAT, {"vllm_xargs": {"x" * 10_000: 1}}, "vllm_xargs"),
    ],
)
def test_fields_that_are_not_for_clients_are_refused_by_name(
    path: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        refuse(fields, path)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert f"'{param}'" in refused.value.message
    assert len(refused.value.message) < 300
    assert_sentences(refused.value.message)


@pytest.mark.parametrize("priority", [-1, 1, -(2**63), "-5", 0.5, True, "x", [1]])
def test_only_a_key_with_the_right_may_set_a_priority(priority: Any) -> None:
    with pytest.raises(ApiError) as refused:
        refuse({"priority": priority})
    assert (refused.value.status, refused.value.param) == (403, "priority")
    assert_sentences(refused.value.message)
    refuse({"priority": priority}, may_prioritize=True)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"n": 1, "priority": 0, "store": True, "metadata": {"a": "b"}, "user": "me"}),
        (CHAT, {"n": 8, "vllm_xargs": {"steer": [1.5]}}),
        (CHAT, {"n": None, "vllm_xargs": None, "priority": None}),
        # vLLM refuses these itself, and says what is wrong with them
        (CHAT, {"n": "many", "vllm_xargs": "steer"}),
        (CHAT, {"n": [9], "vllm_xargs": []}),
        (EMBEDDINGS, {"input": ["a"] * 1024, "encoding_format": "base64", "dimensions": 8}),
    ],
)
def test_fields_for_clients_pass(path: str, fields: dict[str, Any]) -> None:
    refuse(fields, path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
NAMES = ("n", "priority", "vllm_xargs", "prompt", "input")


@given(
    fields=st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANYTHING)),
    path=st.sampled_from([CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS]),
)
def test_a_request_with_any_fields_passes_or_is_refused(fields: dict[str, Any], path: str) -> None:
    try:
        refuse(fields, path)
    except ApiError as refused:
        assert_sentences(refused.message.replace("  ", " ").replace("\n", " "))


async def test_a_gateway_does_not_forward_a_rejected_field() -> None:
    engine = FakeEngine()
    tenants = {OTHER_TENANT: {"engine_priority": True}}
    pool = {"allowed_xargs": ["steer"]}
    async with gateway_before(engine, pool=pool, tenants=tenants, max_n=3) as front:
        for refused, status in (
            ({"vllm_xargs": {"kv_cache_report_mode": "full"}}, 400),
            ({"n": 4}, 400),
            ({"priority": -1}, 403),
        ):
            async with front.post(**refused) as answer:
                assert answer.status == status
                assert (await answer.json())["error"]["param"] == next(iter(refused))
        assert not engine.bodies
        for key, fields in (
            (KEY, {"n": 3, "vllm_xargs": {"steer": 1}}),
            (OTHER_KEY, {"priority": -1}),
        ):
            async with front.post(headers={"authorization": f"Bearer {key}"}, **fields) as answer:
                assert answer.status == 200


async def test_a_request_counts_as_many_sequences_as_the_engine_creates() -> None:
    """Otherwise the replica with the longest queue looks the least loaded, and draws all
    requests."""
    placed: list[Placed] = []
    async with gateway_before(FakeEngine()) as front:
        front.pool.scheduler.announce = placed.append
        async with front.post("/v1/completions", prompt=["a", "b"], n=3) as answer:
            assert answer.status == 200
    assert [each.sequences for each in placed] == [6]
