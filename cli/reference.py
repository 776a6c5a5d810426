"""docs/cli.md, written from the help of the commands: `make reference` puts it in its place.

An option that several commands share, with the same help, is explained once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer
from typer.main import get_command

from cli.main import app

# Commands with the same option or argument, from which on it is explained once.
SHARED_BY, ARGUMENT_SHARED_BY = 2, 3
HELP = "--help"


class Part(NamedTuple):
    """A command or a group of commands. `options`: arguments too, which come first."""

    name: str
    help: str
    options: list[tuple[str, str]]


def page() -> str:
    """The whole page."""
    first, *parts = _parts(get_command(app), "antefix")
    options = (option for part in parts for option in part.options)
    often = {
        name: (name, of)
        for (name, of), times in reversed(Counter(options).most_common())
        if times >= (SHARED_BY if name.startswith("-") else ARGUMENT_SHARED_BY)
    }
    shared = set(often.values())
    sections = "\n\n".join(_section(part, shared) for part in parts)
    return f"""\
# `antefix`

<!-- Written by `make reference` from cli/. Change it there. -->

{first.help}

`-h` shows the help of a command. Arguments, without dashes, are in their order.

{_list(first.options)}

## Common options

Commands name them after *Common*:

{_list(sorted(shared))}

{sections}
"""


def _parts(command: Any, path: str) -> Iterator[Part]:
    """The command, and all below it."""
    context = typer.Context(command, info_name=path)
    parameters = [one for one in command.get_params(context) if HELP not in one.opts]
    records = filter(None, (one.get_help_record(context) for one in parameters))
    told = "\n\n".join(filter(None, (command.help, command.epilog)))
    yield Part(path, _text(told), [(_typed(name), _text(of)) for name, of in records])
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _parts(command.get_command(context, name), f"{path} {name}")


def _section(part: Part, shared: set[tuple[str, str]]) -> str:
    level = "#" * len(part.name.split())
    own = _list([option for option in part.options if option not in shared])
    also = ", ".join(f"`{_flag(name)}`" for name, _ in sorted(shared & {*part.options}))
    more = f"Common: {also}." if also else ""
    return "\n\n".join(filter(None, (f"{level} `{part.name}`", part.help, own, more)))


def _list(options: list[tuple[str, str]]) -> str:
    return "\n".join(f"- `{name}`: {of}" for name, of in options)


def _typed(name: str) -> str:
    """Without the kinds of types: bounds follow the text, repetition is in it."""
    return re.sub(r"<list\[(\w+)\]>", r"<\1>", name.replace(" range>", ">"))


def _flag(name: str) -> str:
    """The long form, without a value's type."""
    return name.partition(" <")[0].rpartition(", ")[2]


def _text(of: str) -> str:
    """As Markdown, in which < begins a tag."""
    return re.sub(r"<(?=\w)", "&lt;", of.replace("  [", " ["))


if __name__ == "__main__":
    print(page(), end="")
