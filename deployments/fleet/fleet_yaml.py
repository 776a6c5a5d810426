"""YAML text as plain data, with the line of every key.

Duplicate keys are refused: YAML would keep the last and say nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from deployments.fleet.fleet_problem import FleetProblem

Keys = tuple[object, ...]


@dataclass(frozen=True)
class YamlDocument:
    """The data of one YAML document, and on which line each of its keys stands."""

    data: Any
    lines: dict[Keys, int]
    problems: tuple[FleetProblem, ...]

    def line_of(self, keys: Keys) -> int:
        """The line of the last of `keys` that the file holds."""
        texts = tuple(str(key) for key in keys)
        while texts and texts not in self.lines:
            texts = texts[:-1]
        return self.lines.get(texts, 1)


def read_yaml(text: str) -> YamlDocument:
    """`text` as data. A document that is not YAML at all has data None and one problem."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[Keys, int] = {}
        problems = tuple(_walk(node, (), lines, ())) if node is not None else ()
        data = loader.construct_document(node) if node is not None and not problems else None
    except yaml.YAMLError as error:
        return YamlDocument(None, {}, (_syntax_problem(error, text),))
    except (ValueError, RecursionError) as error:
        problem = FleetProblem("", None, f"not YAML that can be read: {error}", "Correct it", 1)
        return YamlDocument(None, {}, (problem,))
    return YamlDocument(data, lines, problems)


def _walk(
    node: yaml.Node, keys: Keys, lines: dict[Keys, int], above: tuple[int, ...]
) -> Iterator[FleetProblem]:
    if id(node) in above:
        path, line = ".".join(map(str, keys)), node.start_mark.line + 1
        yield FleetProblem(path, None, "an alias that holds itself", "Write it out", line)
        return
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for place, item in enumerate(node.value):
            yield from _walk(item, (*keys, str(place)), lines, above)
    if isinstance(node, yaml.MappingNode):
        first_line: dict[str, int] = {}
        for key, value in sorted(node.value, key=_is_merge):  # a mapping's own keys win
            name = key.value if isinstance(key.value, str) else ""
            line = key.start_mark.line + 1
            if _is_merge((key, value)):
                yield from _walk(value, keys, lines, above)
                continue
            if name in first_line:
                yield FleetProblem(
                    ".".join([*map(str, keys), name]),
                    None,
                    f"given twice, first on line {first_line[name]}",
                    "Keep one of the two",
                    line,
                )
            first_line.setdefault(name, line)
            lines.setdefault((*keys, name), line)
            yield from _walk(value, (*keys, name), lines, above)


def _is_merge(entry: tuple[yaml.Node, yaml.Node]) -> bool:
    return entry[0].tag == "tag:yaml.org,2002:merge"


def _syntax_problem(error: yaml.YAMLError, text: str) -> FleetProblem:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        message = f"holds the control character {error.character:#04x}"
        return FleetProblem("", None, message, "Take it out", line)
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or "cannot be read"
    context = getattr(error, "context", None)
    column = f", column {mark.column + 1}" if mark is not None else ""
    message = f"not YAML{column}: {said}{f' ({context})' if context else ''}"
    line = mark.line + 1 if mark is not None else 1
    return FleetProblem("", None, message, _syntax_remedy(said, text, line), line)


def _syntax_remedy(said: str, text: str, line: int) -> str:
    if "\\t" in said:
        return "Indent with spaces, not tabs"
    if "${" in "".join(text.split("\n")[line - 1 : line]):
        return 'Quote it inside { }: "${VARIABLE}"'
    return "Correct the syntax"
