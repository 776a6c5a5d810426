"""A key opens the gateway for its tenant; nothing else does."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.api_keys import ApiKeys
from deployments.errors import ApiError

KEYS = ApiKeys({"sk-one": "first", "sk-two": "second"})


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        ("Bearer sk-one", "first"),
        ("Bearer sk-two", "second"),
        ("bearer sk-one", "first"),
        ("BEARER  sk-one ", "first"),
    ],
)
def test_a_key_names_its_tenant(header: str, tenant: str) -> None:
    assert KEYS.check({"authorization": header}) == tenant


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("", "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Bearer  ", "missing_api_key"),
        ("sk-one", "missing_api_key"),
        ("Basic sk-one", "missing_api_key"),
        ("Bearer sk-three", "invalid_api_key"),
        ("Bearer sk-one sk-two", "invalid_api_key"),
        ("Bearer SK-ONE", "invalid_api_key"),
        ("Bearer \xff\udc80", "invalid_api_key"),
    ],
)
def test_nothing_else_is_a_key(header: str | None, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        KEYS.check({} if header is None else {"authorization": header})
    assert (refused.value.status, refused.value.code) == (401, code)
    assert "sk-" not in refused.value.message


@given(st.text(st.characters(max_codepoint=255), min_size=1))
def test_no_other_text_opens_the_gateway(key: str) -> None:
    if key.strip() in ("sk-one", "sk-two"):
        return
    with pytest.raises(ApiError):
        KEYS.check({"authorization": f"Bearer {key}"})


def test_without_keys_nobody_gets_in() -> None:
    with pytest.raises(ApiError):
        ApiKeys({}).check({"authorization": "Bearer sk-one"})


def test_no_dump_of_the_keys_holds_one() -> None:
    assert b"sk-one" not in pickle.dumps(KEYS)
