"""The pool selected by a command's `--pool`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from cli.common.exit_codes import ExitCode
from cli.common.output import CommandError

P = TypeVar("P")


def named_pool(pools: Mapping[str, P], asked: str | None) -> tuple[str, P]:
    """Return name and pool; without a name, the first. Raises CommandError for an unknown one."""
    name = next(iter(pools)) if asked is None else asked
    if name not in pools:
        raise CommandError(
            f"no pool is called {name!r}", f"pools here: {', '.join(pools)}", ExitCode.USAGE
        )
    return name, pools[name]
