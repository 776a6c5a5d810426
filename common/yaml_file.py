"""A YAML file written by a person: its data, the line of every key, and its faults.

Duplicate keys are rejected, because YAML would silently keep the last. Words that YAML 1.1 reads in
an unexpected way are rejected, too: 010 as 8, 1:30 as 90, a key `on` as true, and dates.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from common.errors import Problem

Keys = tuple[object, ...]
_OCTAL = re.compile(r"[-+]?0[0-7_]+")


@dataclass(frozen=True)
class Fault:
    """One fault. `value` is short and has no secrets; None if it does not help.

    `line` counts from 1; None if the fault concerns the file itself.
    """

    path: str
    value: str | None
    message: str
    remedy: str
    line: int | None = None

    def text(self, source: str) -> str:
        remedy = self.remedy if self.remedy.endswith(("?", ".")) else f"{self.remedy}."
        return f"{self.without_remedy(source)}. {remedy}"

    def without_remedy(self, source: str) -> str:
        place = source if self.line is None else f"{source}:{self.line}"
        subject = self.path if self.value is None else f"{self.path} = {self.value}"
        return ": ".join(part for part in (place, subject, self.message) if part)


class FileError(Problem):
    """An unusable file. str() prints every fault with its remedy, one per line."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__("\n".join(fault.text(source) for fault in self.faults), "")


def unreadable(error: OSError | UnicodeDecodeError) -> Fault:
    if isinstance(error, OSError):
        reason = (error.strerror or str(error)).lower()
        return Fault("", None, f"cannot be read: {reason}", "Name a readable file")
    line = error.object.count(b"\n", 0, error.start) + 1
    return Fault("", None, "not UTF-8", "Save the file as UTF-8", line)


@dataclass(frozen=True)
class YamlFile:
    """The mapping in a file, the line of each of its keys, and its faults.

    If it has faults, its data is unusable.
    """

    data: Mapping[Any, Any]
    lines: Mapping[Keys, int]
    faults: tuple[Fault, ...] = ()

    def line_of(self, keys: Keys) -> int:
        """Return the line of the last of `keys` that the file has."""
        texts = tuple(str(key) for key in keys)
        while texts and texts not in self.lines:
            texts = texts[:-1]
        return self.lines.get(texts, 1)

    def located(self, faults: Iterable[tuple[Keys, Fault]]) -> list[Fault]:
        """Return the faults with their lines, in order."""
        found = [replace(fault, line=self.line_of(keys)) for keys, fault in faults]
        return sorted(found, key=lambda fault: fault.line or 0)


def read_yaml(text: str, example: str) -> YamlFile:
    """Read `text`. `example` is the remedy for a text that is not a mapping."""
    lines: dict[Keys, int] = {}
    data = None
    try:
        loader = yaml.SafeLoader(text)
        if (node := loader.get_single_node()) is not None:
            if faults := tuple(_walk(node, (), lines, ())):
                return YamlFile({}, lines, faults)
            data = loader.construct_document(node)
    except yaml.YAMLError as error:
        return YamlFile({}, {}, (_syntax_fault(error, text),))
    except (ValueError, RecursionError) as error:
        fault = Fault("", None, f"not readable YAML:  {error}", "Correct it", 1)
        return YamlFile({}, {}, (fault,))
    if not isinstance(data, Mapping):
        message = "the file is empty" if data is None else "not a mapping"
        return YamlFile({}, {}, (Fault("", None, message, example, 1),))
    return YamlFile(data, lines)


def _trap(node: yaml.Node, keys: Keys, is_key: bool = False) -> Fault | None:
    """Return the fault of a plain word that YAML 1.1 reads in an unexpected way.

    As a value, `off` is what it looks like: settings with `true` or `false` take it.
    """
    if not isinstance(node, yaml.ScalarNode) or node.style is not None:
        return None
    text, kind = node.value, node.tag.rpartition(":")[2]
    if is_key and kind == "bool" and text.lower() not in ("true", "false"):
        read, remedy = str(yaml.safe_load(text)).lower(), f'Quote it: "{text}"'
    elif kind in ("int", "float") and ":" in text:
        read = f"{yaml.safe_load(text):g}, a number to the base of 60"
        remedy = f'Write the number of seconds, or quote the text: "{text}"'
    elif kind == "int" and _OCTAL.fullmatch(text):
        read = f"{yaml.safe_load(text)}, an octal number"
        remedy = f'Omit the leading zeros, or quote the text: "{text}"'
    elif kind == "timestamp":
        read, remedy = "a date", f'Quote it: "{text}"'
    else:
        return None
    path = ".".join(map(str, keys))
    return Fault(path, text[:100], f"YAML reads it as {read}", remedy, node.start_mark.line + 1)


def _walk(
    node: yaml.Node, keys: Keys, lines: dict[Keys, int], above: tuple[int, ...]
) -> Iterator[Fault]:
    line = node.start_mark.line + 1
    lines.setdefault(keys, line)
    if id(node) in above:
        yield Fault(
            ".".join(map(str, keys)),
            None,
            "an alias that contains itself",
            "Write the value in full",
            line,
        )
        return
    if (trap := _trap(node, keys)) is not None:
        yield trap
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for place, item in enumerate(node.value):
            yield from _walk(item, (*keys, str(place)), lines, above)
    if isinstance(node, yaml.MappingNode):
        first_line: dict[str, int] = {}
        for key, value in sorted(node.value, key=_is_merge):  # a mapping's explicit keys win
            name = key.value if isinstance(key.value, str) else ""
            line = key.start_mark.line + 1
            if _is_merge((key, value)):
                yield from _walk(value, keys, lines, above)
                continue
            if (trap := _trap(key, (*keys, name), is_key=True)) is not None:
                yield replace(trap, value=None)
            if name in first_line:
                path = ".".join([*map(str, keys), name])
                message = f"given twice, first on line {first_line[name]}"
                yield Fault(path, None, message, "Keep one of the two", line)
            first_line.setdefault(name, line)
            lines.setdefault((*keys, name), line)
            yield from _walk(value, (*keys, name), lines, above)


def _is_merge(entry: tuple[yaml.Node, yaml.Node]) -> bool:
    return entry[0].tag == "tag:yaml.org,2002:merge"


def _syntax_fault(error: yaml.YAMLError, text: str) -> Fault:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        message = f"contains the control character {error.character:#04x}"
        return Fault("", None, message, "Remove it", line)
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or "cannot be read"
    context = getattr(error, "context", None)
    column = f", column {mark.column + 1}" if mark is not None else ""
    message = f"not YAML{column}: {said}{f' ({context})' if context else ''}"
    line = mark.line + 1 if mark is not None else 1
    return Fault("", None, message, _syntax_remedy(said, text, line), line)


def _syntax_remedy(said: str, text: str, line: int) -> str:
    if "\\t" in said:
        return "Indent with spaces, not tabs"
    if "${" in "".join(text.split("\n")[line - 1 : line]):
        return 'Quote it inside { }: "${VARIABLE}"'
    return "Correct the syntax"
