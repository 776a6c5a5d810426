"""The pool that a command's `--pool` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from cli.exit_codes import ExitCode
from cli.output import CommandError

P = TypeVar("P")


def named_pool(pools: Mapping[str, P], asked: str | None) -> tuple[str, P]:
    """Its name, and the pool; the first without a name. Raises CommandError for an unknown one."""
    name = next(iter(pools)) if asked is None else asked
    if name not in pools:
        raise CommandError(
            f"no pool is called {name!r}", f"pools here: {', '.join(pools)}", ExitCode.USAGE
        )
    return name, pools[name]
