"""What the applications take from their environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import Problem
from deployments.app import secrets_from_environment
from deployments.gateway.intake.keys_file import stored
from tests.deployments.one_pool import BLUE_KEY, ENVIRONMENT, KEY, REDIS_URL, fleet_of, pool_of


def test_secrets_come_from_the_environment() -> None:
    secrets = secrets_from_environment(fleet_of(pool_of()), ENVIRONMENT)
    assert secrets.api_keys == {KEY: "red", BLUE_KEY: "blue"}
    assert (secrets.engine_secret, secrets.redis_url) == ("engine-secret", REDIS_URL)


def test_keys_may_come_from_a_file_that_gateways_follow(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"red={KEY}\nshort=key\n")
    environment = {**ENVIRONMENT, "ANTEFIX_API_KEYS_FILE": str(file)}
    secrets = secrets_from_environment(fleet_of(pool_of()), environment)
    # not the keys themselves: Ray Serve keeps what it is given
    assert (secrets.api_keys, secrets.keys_file) == ({}, str(file))


def test_a_fleet_with_an_unusable_keys_file_is_not_built(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys"
    environment = {**ENVIRONMENT, "ANTEFIX_API_KEYS_FILE": str(file)}
    with pytest.raises(Problem, match="cannot be read: No such file"):
        secrets_from_environment(fleet_of(pool_of()), environment)
    file.write_text("red=short\n")
    with pytest.raises(Problem, match="no usable API key: API key 1 is shorter than 16 characters"):
        secrets_from_environment(fleet_of(pool_of()), environment)
    file.write_text("# nobody, on purpose\n")
    assert secrets_from_environment(fleet_of(pool_of()), environment).keys_file == str(file)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("red=short", "shorter than 16"),
        (f"red={KEY},blue={KEY}", "has two tenants"),
        (f"red={KEY},red={KEY}", "is listed twice"),
        (stored("red", KEY).line(), "belong in a file"),
    ],
)
def test_wrong_keys_of_the_environment_are_refused_without_showing_them(
    keys: str, why: str
) -> None:
    with pytest.raises(Problem, match=why) as refused:
        secrets_from_environment(fleet_of(pool_of()), {**ENVIRONMENT, "ANTEFIX_API_KEYS": keys})
    assert KEY not in str(refused.value)


def test_the_redis_url_of_the_fleet_file_overrides_the_environment() -> None:
    fleet = fleet_of(pool_of(), redis={"url": "redis://other:6379/1"})
    assert secrets_from_environment(fleet, ENVIRONMENT).redis_url == "redis://other:6379/1"


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("ANTEFIX_API_KEYS", "no API keys are set"),
        ("ANTEFIX_ENGINE_SECRET", "no engine secret is set"),
        ("ANTEFIX_REDIS_URL", "no Redis is configured"),
    ],
)
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_secret_is_named_with_its_remedy(
    name: str, missing: str, value: str | None
) -> None:
    environment = {key: v for key, v in ENVIRONMENT.items() if key != name}
    if value is not None:
        environment[name] = value
    with pytest.raises(Problem, match=missing) as caught:
        secrets_from_environment(fleet_of(pool_of()), environment)
    assert name in caught.value.remedy


def test_secrets_are_not_shown() -> None:
    assert "key-1" not in repr(secrets_from_environment(fleet_of(pool_of()), ENVIRONMENT))
