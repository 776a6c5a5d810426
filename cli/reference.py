"""docs/cli.md, written from the help of the commands: `make reference` puts it in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer
from typer.main import get_command

from cli.common.exit_codes import MEANINGS
from cli.main import app

HELP = "--help"


class Part(NamedTuple):
    """A command or a group of commands. `options`: arguments too, which come first."""

    name: str
    help: str
    options: list[tuple[str, str]]


def page() -> str:
    """The whole page."""
    command = get_command(app)
    first, *parts = _parts(command, "antefix")
    sections = "\n\n".join(map(_section, parts))
    codes = "\n".join(
        f"| {code} | `{code.name.lower()}` | {' | '.join(meaning)} |"
        for code, meaning in MEANINGS.items()
    )
    return f"""\
# `antefix`

<!-- Written by `make reference` from cli/. Change it there. -->

{command.help}

`-h` shows the help of a command. Positional arguments are in upper case, without dashes. A DURATION
is a number of seconds or a number with units: `90`, `90s`, `5m`, `1h30m`, `7d`, `250ms`.

{_list(first.options)}

## Exit codes

With `-o json` or `-o yaml`, an error also has the code's name as `error.code`.

| Code | Name | Meaning | Commands | What a script can do |
| -- | -- | -- | -- | -- |
{codes}

{sections}
"""


def _parts(command: Any, path: str) -> Iterator[Part]:
    """The command, and all below it."""
    context = typer.Context(command, info_name=path)
    parameters = [one for one in command.get_params(context) if HELP not in one.opts]
    records = filter(None, (one.get_help_record(context) for one in parameters))
    told = "\n\n".join(filter(None, (command.help, command.epilog)))
    yield Part(path, _text(told), [(name, _text(of)) for name, of in records])
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _parts(command.get_command(context, name), f"{path} {name}")


def _section(part: Part) -> str:
    level = "#" * len(part.name.split())
    return "\n\n".join(filter(None, (f"{level} `{part.name}`", part.help, _list(part.options))))


def _list(options: list[tuple[str, str]]) -> str:
    return "\n".join(f"- `{name}`: {of}" for name, of in options)


def _text(of: str) -> str:
    """As Markdown, in which < begins a tag."""
    return re.sub(r"<(?=\w)", "&lt;", of.replace("  [", " ["))


if __name__ == "__main__":
    print(page(), end="")
