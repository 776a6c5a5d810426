"""Output of all commands: results on stdout, other text on stderr, no traceback.

With `-o json` or `-o yaml`, stdout gets exactly one object, which is {"error": ...} on failure.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from cli.common.exit_codes import ExitCode
from cli.local.home import home_folder
from common.errors import Problem, Unreachable
from common.yaml_file import FileError

notes = Console(stderr=True, highlight=False)


class CommandError(Problem):
    """A Problem with a separate exit code."""

    def __init__(self, message: str, remedy: str, exit_code: ExitCode) -> None:
        super().__init__(message, remedy)
        self.exit_code = exit_code


def not_running(elsewhere: str = "") -> CommandError:
    """Return the error without a running fleet. `elsewhere`: the remedy for a fleet on another
    machine."""
    remedy = "; ".join(filter(None, ("start one with antefix up", elsewhere)))
    return CommandError("no fleet is running here", remedy, ExitCode.NOT_RUNNING)


def is_data(output: str) -> bool:
    """Return whether this value of `-o` asks for an object instead of text."""
    return output in ("json", "yaml")


def print_data(data: dict[str, Any], output: str) -> None:
    """Print an object in the format `output`, "json" or "yaml"."""
    text = json.dumps(data)
    if output == "json":
        typer.echo(text)
    else:
        import yaml

        # YAML's writer knows only plain types, to which JSON reduces enumerations and tuples
        typer.echo(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True), nl=False)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print one row per object in aligned columns, under headings in upper case."""
    lines = [[heading.upper() for heading in headings], *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def note(text: str) -> None:
    """Print plain text on stderr, without wrapping, so that paths and commands can be copied."""
    notes.print(text, markup=False, soft_wrap=True)


def note_error(message: str, remedy: str = "") -> None:
    """Print an error on stderr, and its remedy on a separate line."""
    note(f"Error: {message}")
    if remedy:
        note(f"Remedy: {remedy}")


@contextmanager
def answering(output: str = "table") -> Iterator[None]:
    """Turn errors inside the block into text on stderr, or one object on stdout, and an exit code.

    `output` is the value of `-o`.
    """
    try:
        yield
    except FileError as error:
        faults = error.faults
        if not is_data(output):
            for fault in faults:
                note_error(fault.without_remedy(error.source), fault.remedy)
            raise typer.Exit(ExitCode.INVALID_FILE) from error
        _fail(
            str(error),
            "",
            ExitCode.INVALID_FILE,
            output,
            {"problems": [vars(fault) for fault in faults]},
        )
    except CommandError as error:
        _fail(error.message, error.remedy, error.exit_code, output)
    except Problem as error:
        unreachable = isinstance(error, Unreachable)
        code = ExitCode.UNREACHABLE if unreachable else ExitCode.FAILED
        _fail(error.message, error.remedy, code, output)
    except KeyboardInterrupt:
        _fail("stopped", "", ExitCode.INTERRUPTED, output)
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does; Click ends the command silently.
        raise
    except ModuleNotFoundError as error:
        if os.environ.get("ANTEFIX_DEBUG") == "1":
            raise
        remedy = (
            "in a checkout, run pip install '.[cpu]', or uv tool install '.[cpu]' if uv installed "
            "antefix; for NVIDIA GPUs, write gpu instead of cpu"
        )
        message = f"this command needs the package {error.name}, which is not installed"
        _fail(message, remedy, ExitCode.FAILED, output)
    except Exception as error:
        if os.environ.get("ANTEFIX_DEBUG") == "1":
            raise
        message = f"Antefix failed: {type(error).__name__}: {error}"
        remedy = f"the traceback is in {_log_traceback()}; ANTEFIX_DEBUG=1 shows it"
        _fail(message, remedy, ExitCode.FAILED, output)


def _fail(
    message: str,
    remedy: str,
    exit_code: ExitCode,
    output: str,
    more: dict[str, Any] | None = None,
) -> None:
    if is_data(output):
        error = {"message": message, "remedy": remedy, "exit_code": int(exit_code)}
        print_data({"error": {**error, "code": exit_code.name.lower(), **(more or {})}}, output)
    elif exit_code == ExitCode.INTERRUPTED:
        note(message)
    else:
        note_error(message, remedy)
    raise typer.Exit(exit_code)


def _log_traceback() -> Path:
    folder = home_folder() / "logs"
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.mkdtemp(prefix="antefix-"))
    file = folder / "antefix-errors.log"
    with file.open("a") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{traceback.format_exc()}\n")
    return file
