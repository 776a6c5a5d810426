"""Rules of the fleet file in JSON Schema, for programs without Python: Helm, and editors.

Patterns are those of the rules, in the dialect that Python, Go and JavaScript share. A reserved key
or value has a pattern whose only value is the remedy: validators do not show a description, but
they show the expected value.
"""

import re
from collections.abc import Iterable

from pydantic import WithJsonSchema
from pydantic.config import JsonDict

from deployments.fleet.settings.reserved import RESERVED_ENGINE_ARGS, RESERVED_ENV


def written_as(*forms: re.Pattern[str]) -> WithJsonSchema:
    """Return the schema of text that matches one of `forms` completely."""
    return WithJsonSchema(_matching(forms))


def written_as_and_not(
    *forms: re.Pattern[str], refused: re.Pattern[str], remedy: str
) -> WithJsonSchema:
    """Return that schema, with a remedy for text that matches `refused` too."""
    rule = {"if": {"pattern": _whole(refused.pattern)}, "then": {"const": remedy}}
    return WithJsonSchema({**_matching(forms), **rule})


def other_than(names: Iterable[str]) -> WithJsonSchema:
    """Text that is none of `names`."""
    return WithJsonSchema({"type": "string", "not": {"enum": [*names]}})


def without_reserved_env() -> JsonDict:
    return {"properties": {name: {"const": reason} for name, reason in RESERVED_ENV.items()}}


def without_reserved_engine_args() -> JsonDict:
    remedies: JsonDict = {
        _any_spelling(name): {"const": reason} for name, reason in RESERVED_ENGINE_ARGS.items()
    }
    remedies["^[-_]"] = {"const": "Write it without dashes"}
    return {"patternProperties": remedies}


def _any_spelling(name: str) -> str:
    """api-key, api_key and no_api_key are one flag; a * at the end is any end."""
    return _whole("(no[-_])?" + name.replace("_", "[-_]").replace("*", ".*"))


def _matching(forms: Iterable[re.Pattern[str]]) -> JsonDict:
    return {"type": "string", "pattern": _whole("|".join(form.pattern for form in forms))}


def _whole(pattern: str) -> str:
    return f"^({pattern})$"
