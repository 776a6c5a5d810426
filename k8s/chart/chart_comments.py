"""Descriptions of the keys of values.yaml, from the comments above them.

A line that starts with `# --` starts a description, which continues in the `#` lines below it. `#
@default -- text` there replaces the default. A mapping without a description on any key below it is
a value, otherwise a section.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "helm" / "antefix"

_DEFAULT = "@default --"

_Entry = tuple[yaml.Node, yaml.Node]


@dataclass(frozen=True)
class Key:
    """A key. `path` starts at the top; `description` may be empty; `default` is that of the file,
    None also for a section."""

    path: tuple[str, ...]
    description: str
    default: Any
    shown_default: str | None
    is_section: bool


def keys_of(text: str) -> list[Key]:
    """Return the file's keys, in its order, except sections without a description."""
    top = _keys_below(yaml.compose(text, Loader=yaml.SafeLoader))
    return list(_keys_in(top, (), text.splitlines()))


def _keys_in(keys: list[_Entry], above: tuple[str, ...], lines: list[str]) -> Iterator[Key]:
    for name, value in keys:
        path = (*above, name.value)
        description, shown = _comment_above(name, lines)
        below = _keys_below(value)
        is_section = any(_is_described(*key, lines) for key in below)
        if description or not is_section:
            default = None if is_section else yaml.SafeLoader("").construct_document(value)
            yield Key(path, description, default, shown, is_section)
        if is_section:
            yield from _keys_in(below, path, lines)


def _keys_below(value: yaml.Node | None) -> list[_Entry]:
    """Yield the keys that may have comments, which excludes those within { }."""
    return value.value if isinstance(value, yaml.MappingNode) and not value.flow_style else []


def _is_described(name: yaml.Node, value: yaml.Node, lines: list[str]) -> bool:
    """Return whether a key, or one below it, has a comment."""
    if _comment_above(name, lines)[0]:
        return True
    return any(_is_described(*key, lines) for key in _keys_below(value))


def _comment_above(name: yaml.Node, lines: list[str]) -> tuple[str, str | None]:
    """Return the description, empty if there is none, and the default to show."""
    words: list[str] = []
    shown = None
    for line in reversed(lines[: name.start_mark.line]):
        comment = re.fullmatch(r"\s*#\s?(.*)", line)
        if comment is None:
            break
        if comment[1].startswith(_DEFAULT):
            shown = comment[1].removeprefix(_DEFAULT).strip()
        elif comment[1].startswith("-- "):
            return " ".join([comment[1][3:], *words]), shown
        else:
            words.insert(0, comment[1].strip())
    return "", None
