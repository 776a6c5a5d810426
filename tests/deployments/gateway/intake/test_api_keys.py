"""Only a key opens the gateway for its tenant, with its rights."""

import asyncio
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.held_items import held_items
from deployments.fleet.fleet import GatewaySettings
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.api_keys import ADDRESSES_KEPT, ApiKeys, KeyHolder, WrongKeys
from deployments.gateway.intake.keys_file import KeyRights, StoredKey, new_key, stored
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, TENANT, gateway_before
from tests.sentences import assert_sentences
from tests.some import some
from tests.waiting import cancelled, until

KEYS = ApiKeys({"sk-one": "first", "sk-two": "second"})
OLD, NEW = "sk-old-of-the-red-tenant", "sk-new-of-the-red-tenant"


def code_of(keys: ApiKeys, key: str) -> str:
    """Return the code of the 401; empty where the key is valid."""
    try:
        keys.check({"authorization": f"Bearer {key}"})
    except ApiError as error:
        assert error.status == 401 and error.headers["www-authenticate"] == "Bearer"
        assert key not in error.message
        assert_sentences(error.message)
        return error.code
    return ""


def opens(keys: ApiKeys, key: str) -> bool:
    return code_of(keys, key) == ""


def rewrite(file: Path, text: str) -> None:
    file.write_text(text)


def keys_read_from(file: Path, text: str, keys: ApiKeys | None = None) -> ApiKeys:
    """Return the keys of a gateway that has read the text."""
    keys = keys or ApiKeys({})
    file.write_text(text)
    keys.take(file)
    return keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


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
    assert KEYS.check({"authorization": header}).tenant == tenant


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
def test_any_other_authorization_header_is_rejected(header: str | None, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        KEYS.check({} if header is None else {"authorization": header})
    assert (refused.value.status, refused.value.code) == (401, code)
    assert "sk-" not in refused.value.message
    assert_sentences(refused.value.message)


@given(st.text(st.characters(max_codepoint=255), min_size=1))
def test_no_other_text_is_accepted_as_a_key(key: str) -> None:
    if key.strip() in ("sk-one", "sk-two"):
        return
    with pytest.raises(ApiError):
        KEYS.check({"authorization": f"Bearer {key}"})


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"x-api-key": "sk-one"}, "first"),
        ({"x-api-key": " sk-one "}, "first"),
        ({"authorization": "Bearer sk-two", "x-api-key": "sk-one"}, "second"),
        ({"authorization": "Bearer ", "x-api-key": "sk-one"}, "first"),
        ({"authorization": "Basic abc", "x-api-key": "sk-one"}, "first"),
    ],
)
def test_a_key_is_accepted_as_anthropics_clients_send_it(
    headers: dict[str, str], tenant: str
) -> None:
    assert KEYS.check(headers).tenant == tenant


def test_a_wrong_bearer_key_is_rejected_despite_a_valid_key_in_another_header() -> None:
    with pytest.raises(ApiError) as refused:
        KEYS.check({"authorization": "Bearer sk-no", "x-api-key": "sk-one"})
    assert refused.value.code == "invalid_api_key"


def test_without_keys_every_request_is_refused() -> None:
    assert code_of(ApiKeys({}), "sk-one") == "invalid_api_key"


def test_a_key_with_only_the_id_of_a_revoked_key_is_reported_as_invalid(file: Path) -> None:
    key = new_key()
    keys = keys_read_from(file, replace(stored("red", key), revoked=time.time()).line())
    other = key[: -len(key) + 17] + "x" * 43
    assert other[:17] == key[:17] and code_of(keys, other) == "invalid_api_key"
    assert code_of(keys, key) == "revoked_api_key"


def test_pickled_keys_contain_no_plain_key() -> None:
    assert b"sk-one" not in pickle.dumps(KEYS)


def test_a_hashed_key_is_accepted_with_its_rights(file: Path) -> None:
    key, rights = new_key(), KeyRights(frozenset({"a/b|c", "d e"}), "batch", operator=False)
    line = stored("red", key, rights).line()
    assert key not in line and key.split("_")[2] not in line
    holder = keys_read_from(file, line).check({"authorization": f"Bearer {key}"})
    assert holder == KeyHolder("red", rights, alone=True)


def test_an_expired_key_is_rejected(file: Path) -> None:
    key, now = new_key(), time.time()
    assert opens(keys_read_from(file, stored("red", key, expires=now + 3600).line()), key)
    assert code_of(keys_read_from(file, stored("red", key, expires=now - 2).line()), key) == (
        "expired_api_key"
    )


@pytest.mark.parametrize(
    ("now", "code"),
    [(1_800_000_059.9, ""), (1_800_000_060.0, "expired_api_key"), (2e9, "expired_api_key")],
)
def test_a_key_expires_at_its_time_and_not_after_it(file: Path, now: float, code: str) -> None:
    key = new_key()
    line = stored("red", key, expires=1_800_000_060.0).line()
    assert code_of(keys_read_from(file, line, ApiKeys({}, lambda: now)), key) == code


def test_a_tenant_is_alone_while_no_other_has_a_key(file: Path) -> None:
    def is_alone(keys: ApiKeys) -> bool:
        return keys.check({"authorization": f"Bearer {OLD}"}).alone

    keys = keys_read_from(file, f"red={OLD}\nred={NEW}")
    assert is_alone(keys)
    assert not is_alone(keys_read_from(file, f"red={OLD}\nblue={NEW}", keys))
    assert is_alone(keys_read_from(file, f"red={OLD}", keys))
    # keys of the environment and of the file count together
    assert not is_alone(keys_read_from(file, f"blue={NEW}", ApiKeys({OLD: "red"})))


def test_only_a_sole_tenant_or_an_operator_sees_loads() -> None:
    settings = GatewaySettings.model_validate(
        {"tenants": {"red": {"operator": False}, "blue": {"operator": True}}}
    )

    def sees(tenant: str, alone: bool, operator: bool = True) -> bool:
        return KeyHolder(tenant, KeyRights(operator=operator), alone).sees_loads(settings)

    assert sees("red", alone=True) and not sees("red", alone=False)
    assert sees("blue", alone=True) and sees("blue", alone=False)
    # a key without the right sees none, for any tenant
    assert not sees("red", alone=True, operator=False)
    assert not sees("blue", alone=True, operator=False)


@pytest.mark.parametrize("of_tenant", ["interactive", "batch"])
@pytest.mark.parametrize("of_key", ["interactive", "batch"])
@pytest.mark.parametrize("tenant_operates", [True, False])
@pytest.mark.parametrize("key_operates", [True, False])
def test_a_key_has_the_lesser_of_its_rights_and_its_tenants_rights(
    of_tenant: str, of_key: str, tenant_operates: bool, key_operates: bool
) -> None:
    settings = GatewaySettings.model_validate(
        {"tenants": {"red": {"priority": of_tenant, "operator": tenant_operates}}}
    )
    own = KeyRights(priority=of_key, operator=key_operates)  # type: ignore[arg-type]
    rights = KeyHolder("red", own, alone=False).rights_in(settings)
    assert rights.priority == ("batch" if "batch" in (of_key, of_tenant) else "interactive")
    assert rights.operator == (tenant_operates and key_operates)


@pytest.mark.parametrize("key_may", [True, False])
@pytest.mark.parametrize("tenant_may", [True, False])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("operates", [True, False])
def test_a_key_may_choose_its_policy_only_with_the_right_and_an_entitled_tenant(
    key_may: bool, tenant_may: bool, alone: bool, operates: bool
) -> None:
    settings = GatewaySettings.model_validate(
        {"tenants": {"red": {"policy_header": tenant_may, "operator": operates}}}
    )
    holder = KeyHolder("red", KeyRights(policy=key_may), alone)
    assert holder.rights_in(settings).policy == (key_may and (tenant_may or alone or operates))


@pytest.mark.parametrize(
    ("key_operates", "tenant_operates"), [(True, False), (False, True), (False, False)]
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_key_that_is_not_an_operators_fails_the_operator_check(
    key_operates: bool, tenant_operates: bool, alone: bool
) -> None:
    settings = GatewaySettings.model_validate({"tenants": {"red": {"operator": tenant_operates}}})
    holder = KeyHolder("red", KeyRights(operator=key_operates), alone)
    with pytest.raises(ApiError, match="Only operators see and end canaries") as refused:
        holder.check_operator(settings, "see and end canaries")
    assert (refused.value.status, refused.value.code) == (403, "not_an_operator")
    assert_sentences(refused.value.message)


def test_an_operators_key_passes_the_check_of_operators() -> None:
    settings = GatewaySettings.model_validate({"tenants": {"red": {"operator": True}}})
    KeyHolder("red", KeyRights(operator=True), alone=False).check_operator(
        settings, "load adapters"
    )


# --- following a file -----------------------------------------------------------------------


async def test_a_rotated_key_is_accepted_without_a_restart(file: Path) -> None:
    keys = keys_read_from(file, f"red={OLD}")
    following = asyncio.create_task(keys.follow(file, period_s=0.01))
    rewrite(file, f"red={OLD}\nred={NEW}")
    await until(lambda: opens(keys, NEW))
    assert opens(keys, OLD)
    rewrite(file, f"red={NEW}")
    await until(lambda: not opens(keys, OLD))
    await cancelled(following)


def test_a_removed_key_is_refused_though_another_line_is_wrong(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = keys_read_from(file, f"red={OLD}\nred={NEW}")
    keys_read_from(file, f"red={NEW}\nsk-secret-of-somebody", keys)
    assert opens(keys, NEW) and not opens(keys, OLD)
    assert "API key 2 is not tenant=key" in caplog.text and "sk-secret" not in caplog.text
    assert keys.stale
    keys_read_from(file, f"red={NEW}", keys)
    assert not keys.stale


def test_a_wrong_line_is_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = keys_read_from(file, "red=short")
    keys.take(file)
    assert len(caplog.records) == 1


def test_an_empty_file_refuses_all_keys(file: Path) -> None:
    keys = keys_read_from(file, f"red={OLD}")
    keys_read_from(file, "# nobody\n", keys)
    assert not opens(keys, OLD) and not keys.stale


def test_an_unreadable_file_changes_nothing_and_is_reported(file: Path) -> None:
    keys = keys_read_from(file, f"red={OLD}")
    file.unlink()
    keys.take(file)
    assert opens(keys, OLD)
    assert "cannot be read: No such file" in keys.stale[0]


def test_a_key_listed_for_two_tenants_is_rejected(file: Path) -> None:
    keys = keys_read_from(file, f"red={OLD}\nblue={OLD}\nred={NEW}")
    assert not opens(keys, OLD) and opens(keys, NEW)
    assert any("has two tenants" in fault for fault in keys.stale)


def test_a_duplicate_key_is_accepted_and_reported(file: Path) -> None:
    keys = keys_read_from(file, f"red={OLD}\nred={OLD}")
    assert opens(keys, OLD) and "is listed twice" in keys.stale[0]


def revoked(key: str) -> StoredKey:
    return replace(stored("red", key), revoked=time.time())


@pytest.mark.parametrize(
    "text", [f"{revoked(OLD).line()}\nred={OLD}", f"red={OLD}\n{revoked(OLD).line()}"]
)
def test_a_key_that_is_revoked_on_one_line_is_revoked(file: Path, text: str) -> None:
    assert code_of(keys_read_from(file, text), OLD) == "revoked_api_key"


def test_a_file_with_a_revoked_key_has_no_fault(file: Path) -> None:
    keys = keys_read_from(file, revoked(OLD).line())
    keys.take(file)
    assert code_of(keys, OLD) == "revoked_api_key" and keys.stale == ()


def test_a_revoked_key_stays_so_when_its_file_is_rolled_back(file: Path) -> None:
    keys = keys_read_from(file, f"red={OLD}")
    keys_read_from(file, revoked(OLD).line(), keys)
    keys_read_from(file, f"red={OLD}", keys)
    assert code_of(keys, OLD) == "revoked_api_key"
    assert "was revoked, and stays revoked" in keys.stale[0]


def test_keys_of_the_environment_stay_valid_with_those_of_a_file(file: Path) -> None:
    keys = keys_read_from(file, f"red={NEW}", ApiKeys({OLD: "red"}))
    assert opens(keys, OLD) and opens(keys, NEW)
    keys_read_from(file, revoked(OLD).line(), keys)
    assert code_of(keys, OLD) == "revoked_api_key"


def test_the_senders_of_wrong_keys_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    wrong = WrongKeys(lambda: now[0])
    for _ in range(100):
        wrong.came_from("10.0.0.7")
    wrong.came_from("10.0.0.8")
    assert [record.getMessage() for record in caplog.records] == [
        "rejected requests with a wrong API key: 1, most of them from 10.0.0.7 (1)"
    ]
    now[0] = 60.0
    wrong.came_from("10.0.0.8")
    assert caplog.records[-1].getMessage() == (
        "rejected requests with a wrong API key: 101, most of them from 10.0.0.7 (99), 10.0.0.8 (2)"
    )


def test_wrong_keys_from_many_addresses_use_bounded_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    wrong = WrongKeys(lambda: now[0])
    for number in range(10 * ADDRESSES_KEPT):
        wrong.came_from(f"2001:db8::{number:x}")
    assert held_items(wrong).total() <= ADDRESSES_KEPT + 1
    now[0] = 60.0
    wrong.came_from("2001:db8::1")
    others = 10 * ADDRESSES_KEPT - 1 - ADDRESSES_KEPT
    assert f"most of them from other addresses ({others})" in caplog.records[-1].getMessage()


async def test_a_gateways_log_says_who_sends_wrong_keys(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway_before(FakeEngine()) as front:
        for key in ("sk-guessed", "sk-guessed-again"):
            headers = {"authorization": f"Bearer {key}"}
            async with front.get("/v1/models", headers=headers) as answer:
                assert answer.status == 401
        async with front.http.get(front.url + "/v1/models"):
            pass  # who sends no key guesses none
    told = [one for one in caplog.records if "wrong API key" in one.getMessage()]
    assert [one.getMessage() for one in told] == [
        "rejected requests with a wrong API key: 1, most of them from 127.0.0.1 (1)"
    ]


# --- rights at the gateway ------------------------------------------------------------------


async def limited_to(rights: KeyRights, file: Path, **asked: str) -> tuple[int, str]:
    """Status and code of a chat with such a key, whose headers are `asked`."""
    key, engine = new_key(), FakeEngine()
    async with gateway_before(engine) as front:
        keys_read_from(file, stored(TENANT, key, rights).line(), front.gateway.parts.keys)
        headers = {"authorization": f"Bearer {key}", **asked}
        async with front.post(headers=headers) as answer:
            body = await answer.json()
        async with front.get("/v1/models", headers=headers) as listed:
            seen = {card["id"] for card in (await listed.json())["data"]}
            assert all(rights.may_use(model) for model in seen)
            assert bool(seen) == rights.may_use(MODEL)
    if answer.status == 200:
        return 200, ""
    assert_sentences(body["error"]["message"])
    return answer.status, body["error"]["code"]


async def test_a_key_may_use_only_its_own_models(file: Path) -> None:
    assert await limited_to(KeyRights(frozenset({MODEL})), file) == (200, "")
    others = KeyRights(frozenset({"other"}))
    assert await limited_to(others, file) == (403, "model_not_allowed")


async def test_a_key_may_be_denied_headers_of_antefix(file: Path) -> None:
    policy, only = {"x-antefix-policy": "random"}, {"x-antefix-overflow": "only"}
    no_policy, no_overflow = KeyRights(policy=False), KeyRights(overflow=False)
    assert await limited_to(no_policy, file) == (200, "")
    assert await limited_to(no_policy, file, **policy) == (403, "policy_not_allowed")
    assert await limited_to(no_overflow, file) == (200, "")
    assert await limited_to(no_overflow, file, **only) == (403, "overflow_not_allowed")


async def test_a_gateway_reports_stale_keys_as_a_metric(file: Path) -> None:
    async with gateway_before(FakeEngine()) as front:
        assert (await front.metrics())["antefix_keys_stale",] == 0
        keys_read_from(file, "red=short", front.gateway.parts.keys)
        assert (await front.metrics())["antefix_keys_stale",] == 1
        async with front.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("models", [{MODEL}, {"other"}, set()])
async def test_an_unknown_model_names_only_those_that_the_key_may_use(
    file: Path, models: set[str]
) -> None:
    key = new_key()
    headers = {"authorization": f"Bearer {key}"}
    small = FakeEngine("r1", model="small-secret")
    async with gateway_before(FakeEngine(), small=small) as front:
        line = stored(TENANT, key, KeyRights(frozenset(models))).line()
        keys_read_from(file, line, front.gateway.parts.keys)
        said = []
        async with front.post(headers=headers, model="gpt-9") as answer:
            said.append((answer.status, await answer.json()))
        # large enough to be checked before it arrives
        async with front.post(headers=headers, model="gpt-9", pad="x" * 100_000) as answer:
            said.append((answer.status, await answer.json()))
        async with front.get("/v1/models/gpt-9", headers=headers) as answer:
            said.append((answer.status, await answer.json()))
    for status, body in some(said):
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert_sentences(body["error"]["message"])
        assert "small-secret" not in body["error"]["message"]
        assert (f": {MODEL}." in body["error"]["message"]) == (MODEL in models)
