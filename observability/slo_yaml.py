"""YAML that has to fit a pydantic model, or everything that is wrong with it, in words.

Unknown keys, keys given twice and values of another type are refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from common.errors import Problem

Model = TypeVar("Model", bound=BaseModel)


class Section(BaseModel):
    # strict: YAML has types of its own, so `objective: "99"` is a mistake
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def broken(message: str, remedy: str) -> PydanticCustomError:
    """What a validator raises: pydantic would hide the remedy of any other error."""
    return PydanticCustomError("slo_rule", "{message}", {"message": message, "remedy": remedy})


def read(path: Path, model: type[Model]) -> Model:
    """The file at `path` as a `model`. Raises `Problem` with every problem of the file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise Problem(f"{path}: no such file", "write its path, or `default`") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise Problem(f"{path}: cannot be read: {reason}", "name a readable text file") from None
    try:
        data = yaml.load(text, Loader=_OnceLoader)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise Problem(f"{path}: not YAML: {said}", "correct it there") from None
    if not isinstance(data, dict):
        said = "the file is empty" if data is None else "not a mapping"
        raise Problem(f"{path}: {said}", "copy observability/slo.yaml and change that") from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _all_of(
            path, [_problem(details, data, model) for details in error.errors()]
        ) from None


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is given twice: YAML would keep the last and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.value in seen:
                said = f"the key {key.value} is given twice"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _all_of(path: Path, problems: Iterable[tuple[str, str]]) -> Problem:
    found = [(f"{path}: {message}", remedy) for message, remedy in problems]
    if len(found) == 1:
        return Problem(*found[0])
    return Problem("\n".join(f"{message}; {remedy}" for message, remedy in found), "")


def _problem(details: ErrorDetails, data: Any, model: type[BaseModel]) -> tuple[str, str]:
    """Key, value and what is wrong with it, then the remedy."""
    loc = [part for part in details["loc"] if part != "[key]"]
    key, kind, value = _key(loc, data), details["type"], details["input"]
    if kind == "missing":
        return f"{key} is missing", "add it: it has no default"
    if kind == "extra_forbidden":
        known = list(_section_at(loc[:-1], model).model_fields)
        near = get_close_matches(str(loc[-1]), known, 1)
        remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"{key} is not a key", remedy
    shown = f"{key} = {value!r}" if isinstance(value, str | int | float) else key
    subject = f"{shown}: " if shown else ""
    if kind == "slo_rule":
        return f"{subject}{details['ctx']['message']}", str(details["ctx"]["remedy"])
    return f"{subject}{details['msg'].lower()}", "see docs/slo.md"


def _key(loc: list[int | str], data: Any) -> str:
    """The keys that lead to a place; an entry of a list goes by its name."""
    parts = []
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
        name = data.get("name") if isinstance(part, int) and isinstance(data, dict) else None
        parts.append(name if isinstance(name, str) else str(part))
    return ".".join(parts)


def _section_at(loc: Iterable[int | str], model: type[BaseModel]) -> type[BaseModel]:
    for part in loc:
        fields = model.model_fields
        field = fields.get(str(part)) or fields.get("root")
        if field is not None:
            model = _section_in(field.annotation) or model
    return model


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
