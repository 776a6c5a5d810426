"""Output of all commands: results on stdout, other text on stderr, no traceback.

With --json, stdout gets exactly one JSON object, which is {"error": ...} on failure.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from cli.exit_codes import ExitCode
from cli.local.home import home_folder
from common.errors import Problem
from common.yaml_file import FileError
from deployments.fleet.fleet_file import FleetError

notes = Console(stderr=True, highlight=False)


class CommandError(Problem):
    """A Problem with a separate exit code."""

    def __init__(self, message: str, remedy: str, exit_code: ExitCode) -> None:
        super().__init__(message, remedy)
        self.exit_code = exit_code


def not_running(elsewhere: str = "") -> CommandError:
    """Return the error without a running fleet. `elsewhere`: the remedy for a fleet on another
    machine."""
    remedy = "; ".join(filter(None, ("start one: antefix up", elsewhere)))
    return CommandError("no fleet is running here", remedy, ExitCode.NOT_RUNNING)


def print_json(data: dict[str, Any]) -> None:
    typer.echo(json.dumps(data))


def note(text: str) -> None:
    """Print plain text on stderr, without wrapping, so that paths and commands can be copied."""
    notes.print(text, markup=False, soft_wrap=True)


@contextmanager
def answering(as_json: bool = False) -> Iterator[None]:
    """Turn errors inside the block into one line, or one JSON object, and an exit code."""
    try:
        yield
    except FileError as error:
        code = ExitCode.INVALID_FLEET if isinstance(error, FleetError) else ExitCode.FAILED
        faults = [vars(fault) for fault in error.faults]
        _fail(str(error), "", code, as_json, {"problems": faults})
    except CommandError as error:
        _fail(error.message, error.remedy, error.exit_code, as_json)
    except Problem as error:
        _fail(error.message, error.remedy, ExitCode.FAILED, as_json)
    except KeyboardInterrupt:
        _fail("stopped", "", ExitCode.INTERRUPTED, as_json)
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does; Click ends the command silently.
        raise
    except ModuleNotFoundError as error:
        if os.environ.get("ANTEFIX_DEBUG") == "1":
            raise
        remedy = "install it; what a fleet needs is in the extras cpu and gpu of Antefix's package"
        _fail(f"this needs {error.name}, which is not installed", remedy, ExitCode.FAILED, as_json)
    except Exception as error:
        if os.environ.get("ANTEFIX_DEBUG") == "1":
            raise
        message = f"Antefix failed: {type(error).__name__}: {error}"
        remedy = f"the traceback is in {_log_traceback()}; ANTEFIX_DEBUG=1 shows it"
        _fail(message, remedy, ExitCode.FAILED, as_json)


def _fail(
    message: str,
    remedy: str,
    exit_code: ExitCode,
    as_json: bool,
    more: dict[str, Any] | None = None,
) -> None:
    if as_json:
        error = {"message": message, "remedy": remedy, "exit_code": int(exit_code)}
        print_json({"error": {**error, "code": exit_code.name.lower(), **(more or {})}})
    else:
        note(f"{message}; {remedy}" if remedy else message)
    raise typer.Exit(exit_code)


def _log_traceback() -> Path:
    folder = home_folder() / "logs"
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.mkdtemp(prefix="antefix-"))
    file = folder / "antefix-errors.log"
    with file.open("a") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{traceback.format_exc()}\n")
    return file
