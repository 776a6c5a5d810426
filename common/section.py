"""Content of a YAML file as pydantic models, and pydantic's errors as messages for its author."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError

from common.yaml_file import Fault, Keys

_LONGEST_SHOWN = 80


class Section(BaseModel):
    """A mapping of a file. A null selects the default."""

    # strict, because YAML has its types: `replicas: true` or `port: "80"` is a mistake
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        for name, key in schema["properties"].items():
            if name not in schema.get("required", ()):
                schema["properties"][name] = {"anyOf": [key, {"type": "null"}]}
        return reference


class Broken(NamedTuple):
    """A broken rule at `loc`, a path below the checked value. `...` as value: none."""

    loc: tuple[str | int, ...]
    value: object
    message: str
    remedy: str


def refuse(message: str, remedy: str) -> PydanticCustomError:
    """Return the error for a validator to raise. It keeps the remedy, which pydantic drops from
    other errors."""
    context = {"message": message, "remedy": remedy}
    return PydanticCustomError("rule", "{message}. {remedy}", context)


def raise_all(broken: Iterable[Broken]) -> None:
    """Raise every broken rule at its place, or return."""
    details = [
        InitErrorDetails(type=refuse(rule.message, rule.remedy), loc=rule.loc, input=rule.value)
        for rule in broken
    ]
    if details:
        raise ValidationError.from_exception_data("rules", details)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a remedy that names the nearest known word, if one is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else None


def shown(value: object) -> str:
    """Return `value` as one short piece of YAML for a message."""
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
    text = str(value)
    quoted = isinstance(value, str) and (text == "" or text != text.strip() or _needs_quotes(text))
    text = f"'{text}'" if quoted else text
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _needs_quotes(text: str) -> bool:
    """Return whether text would parse as a number, a boolean or null without quotes."""
    return bool(re.fullmatch(r"[-+.\d][\d._e+-]*|true|false|yes|no|on|off|null|~", text, re.I))


def faults_of(
    error: ValidationError,
    model: type[BaseModel],
    data: Any,
    page: str,
    show: Callable[[tuple[str, ...], object], str] = lambda keys, value: shown(value),
    opaque: str = "",
) -> Iterator[tuple[Keys, Fault]]:
    """Return every fault that pydantic found in `data`, with the keys that lead to it.

    `page` documents the file. `show` formats the value at some keys. Below `opaque`, only a key's
    name is reported.
    """
    for details in error.errors():
        keys: Keys = tuple(key for key in details["loc"] if key != "[key]")
        if opaque in keys:
            keys = keys[: keys.index(opaque) + 2]
        kind, value = details["type"], details["input"]
        says_nothing = (
            value is ...
            # the value under a mistyped key may be a secret
            or kind in ("missing", "extra_forbidden")
            or details["loc"][-1:] == ("[key]",)
            or (kind == "rule" and isinstance(value, Mapping) and bool(value))
        )
        said = None if says_nothing else show(tuple(map(str, keys)), value)
        yield keys, Fault(_path(keys, data), said, *_words_for(details, keys, model, page))


def _path(keys: Keys, data: Any) -> str:
    """Name an entry of a list by its name."""
    parts = []
    for key in keys:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            data = None
        name = data.get("name") if isinstance(key, int) and isinstance(data, Mapping) else None
        parts.append(name if isinstance(name, str) else str(key))
    return ".".join(parts)


def _words_for(
    details: ErrorDetails, keys: Keys, model: type[BaseModel], page: str
) -> tuple[str, str]:
    """Return the message and the remedy for one of pydantic's errors."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    if kind == "rule":
        return context["message"], context["remedy"]
    if kind == "extra_forbidden":
        section, key = _section_at(keys[:-1], model), str(keys[-1])
        known = [field.alias or name for name, field in section.model_fields.items()]
        return "unknown key", did_you_mean(key, known) or f"Known here: {', '.join(known)}"
    if kind in _WORDS:
        message, remedy = _WORDS[kind]
        if kind in ("int_type", "float_type", "int_from_float") and isinstance(value, str):
            remedy = _number_remedy(value, remedy)
        if kind == "string_type" and isinstance(value, int | float):
            # without the value: it may be a secret
            remedy = "Put quotes around it"
        return message, remedy
    said = details["msg"]
    return out_of_bounds(details) or (said[:1].lower() + said[1:], f"See {page}")


def _section_at(keys: Keys, section: type[BaseModel]) -> type[BaseModel]:
    """Return the section at `keys`; for a mapping, that of its values."""
    for key in keys:
        fields = section.model_fields
        field = fields.get(str(key)) or fields.get("root")
        if field is not None:
            section = _section_in(field.annotation) or section
    return section


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def out_of_bounds(details: ErrorDetails) -> tuple[str, str] | None:
    """Return message and remedy; None if `details` is not about a bound."""
    if details["type"] not in _BOUNDS:
        return None
    message, remedy = _BOUNDS[details["type"]]
    limit = next(iter(details["ctx"].values()))
    return message, f"{remedy} {limit:g}" if isinstance(limit, float) else f"{remedy} {limit}"


def _number_remedy(text: str, remedy: str) -> str:
    """YAML reads 1e6 and "8000" as text. Say so if that is the only fault."""
    try:
        number = float(text)
    except ValueError:
        return remedy
    whole = number.is_integer() and abs(number) < 1e15
    return f"Write {int(number)}, without quotes" if whole else f"Write {number}, without quotes"


_BOUNDS = {
    "greater_than": ("too low", "Write more than"),
    "greater_than_equal": ("too low", "Write at least"),
    "less_than": ("too high", "Write less than"),
    "less_than_equal": ("too high", "Write at most"),
}
_WORDS = {
    "missing": ("missing", "Add it: it has no default"),
    "int_type": ("not a whole number", "Write one, such as 1"),
    "int_from_float": ("not a whole number", "Write it without a fraction"),
    "float_type": ("not a number", "Write one, such as 0.5"),
    "finite_number": ("not a finite number", "Write one, such as 600"),
    "byte_size": ("not a size", "Write bytes, or a number and its unit, such as 64Gi"),
    "byte_size_unit": ("not a size", "Write bytes, or a number and its unit, such as 64Gi"),
    "bool_type": ("neither true nor false", "Write one of the two"),
    "string_type": ("not text", "Write text"),
    "string_too_short": ("empty", "Write a value, or leave the key out"),
    "model_type": ("not a mapping", "Write keys below it, each with a value"),
    "dict_type": ("not a mapping", "Write keys below it, each with a value"),
    "mapping_type": ("not a mapping", "Write keys below it, each with a value"),
    "list_type": ("not a list", "Write each entry on a separate line, after a dash"),
    "too_short": ("empty", "Add at least one entry"),
    "invalid_key": ("not text", "Quote the key"),
    "invalid-json-value": ("not plain data", "Use text, numbers, lists, mappings"),
}
