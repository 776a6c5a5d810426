"""Forms of JSON values, and the first value that does not have its form.

A form looks at each value once, and at none after the first fault. It reports one fault, even if
there are more. Null counts as absent, except in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

# The place of a value: that of its holder, and its name or index there. Only a fault spells it.
Place = tuple[Any, str | int]


@dataclass(frozen=True)
class ItemFault:
    """A value that engines cannot read, or would ignore if `is_ignored`.

    `why` completes a sentence whose subject is the place. `remedy`: whole sentences.
    """

    place: Place
    why: str
    remedy: str
    is_ignored: bool = False

    @property
    def field(self) -> str:
        """The field of the body."""
        holder, name = self.place
        while holder is not None:
            holder, name = holder
        return str(name)

    @property
    def message(self) -> str:
        return f"'{_spelled(self.place)}' {self.why} {self.remedy}"


class ItemForm(Protocol):
    """`expects`: what it takes, with an article."""

    @property
    def expects(self) -> str: ...

    def takes(self, value: object) -> bool:
        """Return whether the value has the right JSON type."""
        ...

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        """Return the first fault in a value."""
        ...


@dataclass(frozen=True)
class Plain:
    """A value of one of some JSON types; `kinds` are their Python types."""

    kinds: tuple[type, ...]
    expects: str

    def takes(self, value: object) -> bool:
        return isinstance(value, self.kinds)

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        return None if isinstance(value, self.kinds) else _wrong(self, value, place)


@dataclass(frozen=True)
class Whole:
    """A whole number, also as a text or with a zero fraction, as vLLM reads it."""

    expects: str = "a whole number"

    def takes(self, value: object) -> bool:
        if isinstance(value, float):
            return value.is_integer()
        if isinstance(value, str):
            return len(value) < 100 and value.strip().lstrip("+-").replace("_", "").isdecimal()
        return isinstance(value, int)

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        return None if self.takes(value) else _wrong(self, value, place)


@dataclass(frozen=True)
class Anything:
    expects: str = "any value"

    def takes(self, value: object) -> bool:
        return True

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        return None


@dataclass(frozen=True)
class _Values:
    """A list or an object whose values all have one form."""

    form: ItemForm
    holder: ClassVar[type]

    @property
    def expects(self) -> str:
        return json_type(self.holder())

    def takes(self, value: object) -> bool:
        return isinstance(value, self.holder)

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        if not self.takes(value):
            return _wrong(self, value, place)
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            # a prompt may have a million numbers
            if type(each) is int and isinstance(self.form, Whole):
                continue
            if (fault := self.form.fault(each, (place, name))) is not None:
                return fault
        return None


class ListOf(_Values):
    holder = list


class MapOf(_Values):
    holder = dict


class Either:
    """A value of one of several forms, which differ in their JSON types."""

    def __init__(self, *forms: ItemForm) -> None:
        self._forms = forms
        self.expects = " or ".join(form.expects for form in forms)

    def takes(self, value: object) -> bool:
        return any(form.takes(value) for form in self._forms)

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        for form in self._forms:
            if form.takes(value):
                return form.fault(value, place)
        return _wrong(self, value, place)


@dataclass(frozen=True)
class ItemKind:
    """An object, which may have a `type`.

    `needs` and `reads` are the fields that engines read, required and optional. They may ignore
    those in `ignores`. `refuses` has the remedy for some of the others. If `is_open`, engines may
    read any other field, and the object passes with it.
    """

    needs: Mapping[str, ItemForm] = field(default_factory=dict)
    reads: Mapping[str, ItemForm] = field(default_factory=dict)
    ignores: frozenset[str] = frozenset()
    refuses: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False

    @property
    def expects(self) -> str:
        return "an object"

    def takes(self, value: object) -> bool:
        return isinstance(value, dict)

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        if not isinstance(value, dict):
            return _wrong(self, value, place)
        for name, form in self.needs.items():
            if value.get(name) is None:
                return ItemFault(place, f"has no {name!r}.", f"Send {form.expects}.")
        for name, each in value.items():
            form_of = self.needs.get(name) or self.reads.get(name)
            if each is None:
                continue
            if form_of is not None:
                if (fault := form_of.fault(each, (place, name))) is not None:
                    return fault
            elif each and not self.is_open and name != "type" and name not in self.ignores:
                remedy = self.refuses.get(name, "Omit it.")
                why = "is not supported, and the engine would ignore it."
                return ItemFault((place, name), why, remedy, is_ignored=True)
        return None


def _type_of(value: Mapping[str, Any]) -> Any:
    return value.get("type")


@dataclass(frozen=True)
class Tagged:
    """An object of one of several kinds, which one of its fields names.

    `noun`: what it is, such as "part". `tag`: the name of that field; `tag_of` reads it. `refuses`
    has the remedy for kinds that engines do not read; `otherwise` is that for unknown ones.
    """

    noun: str
    kinds: Mapping[str, ItemForm]
    otherwise: str = ""
    refuses: Mapping[str, str] = field(default_factory=dict)
    tag: str = "type"
    tag_of: Callable[[Mapping[str, Any]], Any] = _type_of

    @property
    def expects(self) -> str:
        return f"an object with a {self.tag!r}"

    def takes(self, value: object) -> bool:
        return isinstance(value, dict)

    def fault(self, value: Any, place: Place) -> ItemFault | None:
        if not isinstance(value, dict):
            return _wrong(self, value, place)
        tag = self.tag_of(value)
        kind = self.kinds.get(tag) if isinstance(tag, str) else None
        if kind is not None:
            return kind.fault(value, place)
        if tag is None:
            return ItemFault(place, f"has no {self.tag!r}.", self._instead)
        if not isinstance(tag, str):
            return ItemFault((place, self.tag), f"is {json_type(tag)}.", self._instead)
        why = f"has the {self.tag} {tag[:100]!r}, which engines cannot read here."
        return ItemFault(place, why, self.refuses.get(tag, self._instead), is_ignored=True)

    @property
    def _instead(self) -> str:
        return self.otherwise or f"Send one of {', '.join(map(repr, self.kinds))}."


def json_type(value: object) -> str:
    """Return the JSON type of a value, with an article."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    others = {list: "a list", dict: "an object", type(None): "null"}
    return (names | others).get(type(value), "another value")


def _wrong(form: ItemForm, value: object, place: Place) -> ItemFault:
    return ItemFault(
        place, f"must be {form.expects}, not {json_type(value)}.", "Correct it, or omit it."
    )


def _spelled(place: Place) -> str:
    holder, name = place
    if holder is None:
        return str(name)
    after = f"[{name}]" if isinstance(name, int) else f".{name[:100]}"
    return _spelled(holder) + after
