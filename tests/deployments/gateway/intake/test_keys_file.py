"""What a file of keys says, and that a change of one key changes no other line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.intake.keys_file import (
    KeyRights,
    id_of,
    keys_of,
    new_key,
    plain_keys,
    stored,
    with_key,
)

RED, BLUE = "key-of-the-red-tenant", "key-of-the-blue-tenant"
names = st.text("aZ0 |,=%/\u00e4\n", min_size=1, max_size=4)
rights = st.builds(
    KeyRights,
    st.none() | st.frozensets(names, min_size=1, max_size=3),
    st.sampled_from(["interactive", "batch"]),
    *(st.booleans() for _ in range(3)),
)


@pytest.mark.parametrize(
    "text",
    [
        f"red={RED},blue={BLUE}",
        f"red={RED}\nblue={BLUE}\n",
        f" red = {RED} ,\n\n# old, green=k\nblue={BLUE}",
        f"blue={BLUE}\nred={RED}",
    ],
)
def test_keys_stand_on_lines_or_between_commas(text: str) -> None:
    keys, faults = keys_of(text)
    assert {key.id: key.tenant for key in keys.values()} == {id_of(RED): "red", id_of(BLUE): "blue"}
    assert plain_keys(text) == {RED: "red", BLUE: "blue"} and faults == []


def test_a_tenant_may_have_two_keys_while_one_is_rotated() -> None:
    assert len(keys_of(f"red={RED}\nred={RED}=with=signs")[0]) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sk-secret", "API key 1 is not tenant=key"),
        ("red=sk-secret", "API key 1 is shorter than 16 characters"),
        (f"red=sk-secret-{chr(0xFC)}-and-more-of-it", "characters that HTTP headers cannot have"),
        ("=sk-secret", "API key 1 is not tenant=key"),
        ("red=", "API key 1 is not tenant=key"),
        ("red=sha256:sk-secret", "API key 1 is not a salted hash"),
        (stored("red", RED).line() + " moddels=a", "API key 1 is not a salted hash"),
        (stored("red", RED).line() + " expires=soon", "API key 1 is not a salted hash"),
        (stored("red", RED).line() + " priority=x", "API key 1 is not a salted hash"),
    ],
)
def test_an_invalid_line_is_skipped_and_reported_without_its_key(text: str, why: str) -> None:
    keys, (fault,) = keys_of(text)
    assert keys == {} and why in fault and "sk-secret" not in fault


@given(rights, st.none() | st.integers(0, 4_000_000_000))
def test_a_key_is_unchanged_after_it_is_written_as_a_line(
    rights: KeyRights, expires: int | None
) -> None:
    key = stored("red", new_key(), rights, expires)
    assert keys_of(key.line()) == ({key.id: key}, [])


@given(st.text())
def test_any_text_can_be_parsed_as_a_keys_file(text: str) -> None:
    keys_of(text)


def test_hashed_keys_are_not_listed_as_plain_keys() -> None:
    assert plain_keys(f"red={RED}\n{stored('blue', BLUE).line()}") == {RED: "red"}


def test_two_hashes_of_one_key_do_not_look_alike() -> None:
    assert stored("red", RED).digest != stored("red", RED).digest


def test_a_change_leaves_all_other_lines_as_they_are() -> None:
    key = stored("red", RED)
    text = f"# ours, all\nred={RED}, blue={BLUE}\n"
    assert with_key(text, key) == f"# ours, all\n{key.line()}\nblue={BLUE}\n"
    assert with_key("# none", key) == f"# none\n{key.line()}\n"
