"""Each request has a salt of those who may share its cached prompt."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.cache_salt import CacheSalts
from deployments.gateway.intake.request import EngineRequest
from deployments.gateway.intake.request_body import extended
from deployments.gateway.pool.overflow_contract import renamed
from observability.traces.request_record import RequestFacts, RequestRecord

CHAT = "/v1/chat/completions"
SALTS = CacheSalts("secret")
names = st.text(min_size=1, max_size=5)
owners = st.tuples(names, st.none() | names, st.none() | names)


def salt_of(tenant: str, group: str | None, asked: str | None) -> str:
    salt = SALTS.of(CHAT, tenant, group, {} if asked is None else {"cache_salt": asked})
    assert salt is not None
    return salt


@given(owners, owners)
@example(("a", "b", None), ("b", None, None))
@example(("a", None, None), ("a", None, "null"))
def test_requests_share_a_salt_only_with_the_same_tenant_or_group_and_client_salt(
    one: tuple[str, str | None, str | None], other: tuple[str, str | None, str | None]
) -> None:
    def of(tenant: str, group: str | None, asked: str | None) -> tuple[Any, ...]:
        return group, None if group else tenant, asked

    assert (salt_of(*one) == salt_of(*other)) == (of(*one) == of(*other))


@given(owners)
def test_vllm_accepts_a_salt_and_each_fleet_has_a_different_one(
    owner: tuple[str, str | None, str | None],
) -> None:
    salt = salt_of(*owner)
    assert re.fullmatch("[0-9a-f]{32}", salt)
    fields = {} if owner[2] is None else {"cache_salt": owner[2]}
    assert CacheSalts("other").of(CHAT, owner[0], owner[1], fields) != salt


@pytest.mark.parametrize("asked", ["", 1, True, ["a"], {}])
def test_a_salt_that_an_engine_would_refuse_is_refused(asked: object) -> None:
    with pytest.raises(ApiError) as refused:
        SALTS.of(CHAT, "tenant", None, {"cache_salt": asked})
    assert (refused.value.status, refused.value.param) == (400, "cache_salt")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_requests_that_cache_nothing_have_no_salt(path: str) -> None:
    assert SALTS.of(path, "tenant", None, {"cache_salt": 1}) is None


bodies = st.dictionaries(
    st.sampled_from(["model", "cache_salt", "prompt"]), st.text() | st.none(), min_size=1
)


@given(bodies, st.sampled_from([None, 2]), st.sampled_from([b"", b" \r\n\t"]))
def test_a_salted_body_is_the_clients_own_with_our_salt(
    fields: dict[str, Any], indent: int | None, after: bytes
) -> None:
    body = json.dumps(fields, indent=indent).encode()
    more = {"cache_salt": "ours", "model": 'a "model"'}
    made = extended(body + after, more)
    assert made.startswith(body[:-1])
    assert json.loads(made) == {**fields, **more}
    assert extended(body, {}) == body


def test_a_request_that_overflows_keeps_its_salt() -> None:
    fields = {"model": "large", "prompt": "x", "cache_salt": "mine"}
    record = RequestRecord(RequestFacts("id", "tenant", CHAT), 0.0)
    body = json.dumps(fields).encode()
    asked = EngineRequest("id", "tenant", CHAT, body, "ours", "large", 0.0, 1.0, 1.0, 1.0, record)
    there = renamed(asked, "small")
    assert there.cache_salt == "ours"
    assert json.loads(there.engine_body) == {"model": "small", "prompt": "x", "cache_salt": "ours"}
