"""Display of a fleet file's values: short, and without secrets."""

import re
from collections.abc import Mapping

from common import section
from deployments.fleet.settings import redis_url

HIDDEN = "***"
_SECRET_WORDS = frozenset(
    {"TOKEN", "KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "PASS", "CREDENTIAL", "CREDENTIALS"}
)


def is_secret_name(name: str) -> bool:
    """Return true for HF_TOKEN or AWS_SECRET_ACCESS_KEY; false for TOKENIZERS_PARALLELISM."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^A-Z0-9]+", name.upper()))


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the values of secret names, and the passwords inside URLs, hidden."""
    return {name: HIDDEN if is_secret_name(name) else masked_text(env[name]) for name in env}


def masked_text(text: str) -> str:
    """Return `text` with the password of a URL in it hidden."""
    return redis_url.masked(text) if "://" in text else text


def shown(path: tuple[str, ...], value: object) -> str:
    """Return `value` at `path` as one short piece of YAML for an error message."""
    if path and is_secret_name(path[-1]) and path[-2:-1] != ("pools",):
        return HIDDEN
    if isinstance(value, str):
        value = redis_url.masked(value) if path[:1] == ("redis",) else masked_text(value)
    return section.shown(value)
