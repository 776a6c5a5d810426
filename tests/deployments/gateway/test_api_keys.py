"""A key opens the gateway for its tenant; nothing else does."""

import asyncio
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Problem
from deployments.gateway.api_keys import ApiKeys, keys_in, read_keys
from deployments.gateway.errors import ApiError
from tests.sentences import assert_sentences
from tests.waiting import cancelled, until

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
    assert_sentences(refused.value.message)


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


@pytest.mark.parametrize(
    "text",
    ["red=k1,blue=k2", "red=k1\nblue=k2\n", " red = k1 ,\n\n# old\nblue=k2", "blue=k2\nred=k1"],
)
def test_keys_stand_on_lines_or_between_commas(text: str) -> None:
    assert keys_in(text) == {"k1": "red", "k2": "blue"}


def test_a_tenant_may_have_two_keys_while_one_is_rotated() -> None:
    assert keys_in("red=old\nred=new=with=signs") == {"old": "red", "new=with=signs": "red"}


@pytest.mark.parametrize("text", ["red=k1\nsk-secret", "=sk-secret", "red="])
def test_what_is_no_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(Problem, match=r"API key \d is not tenant=key") as refused:
        keys_in(text)
    assert "sk-secret" not in refused.value.message + refused.value.remedy


def test_a_file_without_keys_says_so(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="cannot be read: No such file"):
        read_keys(tmp_path / "keys")
    (tmp_path / "keys").write_text("# none yet\n")
    with pytest.raises(Problem, match="holds no API key"):
        read_keys(tmp_path / "keys")


def opens(keys: ApiKeys, key: str) -> bool:
    try:
        return keys.check({"authorization": f"Bearer {key}"}) == "red"
    except ApiError:
        return False


async def test_a_rotated_key_is_taken_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("red=old")
    keys = ApiKeys({"old": "red"})
    following = asyncio.create_task(keys.follow(file, period_s=0.01))
    file.write_text("red=old\nred=new")
    await until(lambda: opens(keys, "new"))
    assert opens(keys, "old")
    file.write_text("red=new")
    await until(lambda: not opens(keys, "old"))
    await cancelled(following)


async def test_half_a_rotation_locks_nobody_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    keys = ApiKeys({"old": "red"})
    following = asyncio.create_task(keys.follow(file, period_s=0.01))
    await until(lambda: "stay as they are" in caplog.text)
    file.write_text("sk-secret")
    await until(lambda: "API key 1 is not tenant=key" in caplog.text)
    assert opens(keys, "old") and "sk-secret" not in caplog.text
    file.write_text("red=new")
    await until(lambda: opens(keys, "new"))
    await cancelled(following)
