"""What is wrong with a fleet file, in words for the person who wrote it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from deployments.fleet.fleet import Fleet
from deployments.fleet.settings import masking
from deployments.fleet.settings.bounds import out_of_bounds
from deployments.fleet.settings.fleet_rules import did_you_mean


@dataclass(frozen=True)
class FleetProblem:
    """One thing wrong. `value` is fit to be shown: short, without secrets; None where it says
    nothing. `line` counts from 1; None where the problem is the file itself.
    """

    path: str
    value: str | None
    message: str
    remedy: str
    line: int | None = None

    def text(self, source: str) -> str:
        place = source if self.line is None else f"{source}:{self.line}"
        subject = self.path if self.value is None else f"{self.path} = {self.value}"
        remedy = self.remedy if self.remedy.endswith(("?", ".")) else f"{self.remedy}."
        return ": ".join(part for part in (place, subject, f"{self.message}. {remedy}") if part)


class FleetError(ValueError):
    """A fleet file that cannot be used. str() prints every problem, one a line."""

    def __init__(self, source: str, problems: Sequence[FleetProblem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.text(source) for problem in self.problems))


def problem_at(loc: Sequence[object], value: object, message: str, remedy: str) -> FleetProblem:
    """A problem with `value`, which stands at `loc`; its line is filled in by who read the file."""
    keys = [str(key) for key in loc]
    shown = None if value is ... else masking.shown(keys, value)
    return FleetProblem(".".join(keys), shown, message, remedy)


def problems_of(error: ValidationError) -> Iterator[tuple[tuple[object, ...], FleetProblem]]:
    """Every problem that pydantic found, with the keys that lead to it."""
    for details in error.errors():
        loc = _keys_of(details["loc"])
        if details["type"] == "extra_forbidden":
            yield loc, _unknown_key(loc)
        elif details["type"] == "missing":
            path = ".".join(map(str, loc))
            yield loc, FleetProblem(path, None, "missing", "Add it: it has no default")
        else:
            problem = problem_at(loc, details["input"], *_words_for(details))
            about_the_key = details["loc"][-1:] == ("[key]",)
            yield loc, replace(problem, value=None) if about_the_key else problem


def _keys_of(loc: tuple[int | str, ...]) -> tuple[object, ...]:
    """pydantic's `loc` as keys of the file: without its marks for keys and for JSON's kinds."""
    keys: tuple[object, ...] = tuple(key for key in loc if key != "[key]")
    if "engine_args" in keys:
        keys = keys[: keys.index("engine_args") + 2]
    return keys


def _unknown_key(loc: tuple[object, ...]) -> FleetProblem:
    path = ".".join(map(str, loc))
    known = tuple(_section_at(loc[:-1]).model_fields)
    remedy = did_you_mean(str(loc[-1]), known) or f"Known here: {', '.join(known)}"
    # its value is not shown: under a mistyped key it may be a secret
    return FleetProblem(path, None, "unknown key", remedy)


def _section_at(loc: tuple[object, ...]) -> type[BaseModel]:
    """The part of the fleet that `loc` leads to; where it leads into a mapping, its values'."""
    section: type[BaseModel] = Fleet
    for key in loc:
        field = section.model_fields.get(str(key))
        if field is not None:
            section = _section_in(field.annotation) or section
    return section


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def _words_for(details: ErrorDetails) -> tuple[str, str]:
    """The message and the remedy for one of pydantic's errors."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    if kind == "fleet_rule":
        return context["message"], context["remedy"]
    if kind in _WORDS:
        message, remedy = _WORDS[kind]
        if kind in ("int_type", "float_type", "int_from_float") and isinstance(value, str):
            remedy = _number_remedy(value, remedy)
        if kind == "string_type" and isinstance(value, int | float):
            # without the value: it may be a secret
            remedy = "Put quotes around it"
        return message, remedy
    return out_of_bounds(details) or (details["msg"].lower(), "See docs/fleet-file.md")


def _number_remedy(text: str, remedy: str) -> str:
    """YAML reads 1e6 and "8000" as text; say so when that is all that is wrong."""
    try:
        number = float(text)
    except ValueError:
        return remedy
    whole = number.is_integer() and abs(number) < 1e15
    return f"Write {int(number)}, without quotes" if whole else f"Write {number}, without quotes"


_WORDS = {
    "int_type": ("not a whole number", "Write one, such as 1"),
    "int_from_float": ("not a whole number", "Write it without a fraction"),
    "float_type": ("not a number", "Write one, such as 0.5"),
    "finite_number": ("not a finite number", "Write one, such as 600"),
    "bool_type": ("neither true nor false", "Write one of the two"),
    "string_type": ("not text", "Write text"),
    "string_too_short": ("empty", "Write something, or leave the key out"),
    "model_type": ("not a mapping", "Write keys below it, each with a value"),
    "dict_type": ("not a mapping", "Write keys below it, each with a value"),
    "too_short": ("empty", "Add at least one entry"),
    "invalid_key": ("not text", "Quote the key"),
    "invalid-json-value": ("not a value vLLM can be given", "Use text, numbers, lists, mappings"),
}
