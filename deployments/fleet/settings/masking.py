"""How a value of the fleet file is shown to people: short, and never a secret."""

import re
from collections.abc import Mapping, Sequence

from deployments.fleet.settings import redis_url

HIDDEN = "***"
_LONGEST_SHOWN = 80
_SECRET_WORDS = frozenset(
    {"TOKEN", "KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "PASS", "CREDENTIAL", "CREDENTIALS"}
)


def is_secret_name(name: str) -> bool:
    """True for HF_TOKEN or AWS_SECRET_ACCESS_KEY; false for TOKENIZERS_PARALLELISM."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^A-Z0-9]+", name.upper()))


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with the values of secret names, and the passwords inside URLs, hidden."""
    return {name: HIDDEN if is_secret_name(name) else masked_text(env[name]) for name in env}


def masked_text(text: str) -> str:
    """`text` with the password of a URL in it hidden."""
    return redis_url.masked(text) if "://" in text else text


def shown(path: Sequence[str], value: object) -> str:
    """`value`, which stands at `path`, as one short piece of YAML for an error message."""
    if path and (is_secret_name(path[-1]) and path[-2:-1] != ("pools",)):
        return HIDDEN
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    if isinstance(value, Mapping):
        return "a mapping" if value else "{}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = redis_url.masked(str(value)) if path[:1] == ("redis",) else masked_text(str(value))
    quoted = isinstance(value, str) and (text == "" or text != text.strip() or _needs_quotes(text))
    text = f"'{text}'" if quoted else text
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _needs_quotes(text: str) -> bool:
    """Text that would read as a number, a truth value or nothing, were it not quoted."""
    return bool(re.fullmatch(r"[-+.\d][\d._e+-]*|true|false|yes|no|on|off|null|~", text, re.I))
