"""Chosen figures of a result in tables, for a benchmark with too many for tables of all."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness.results import report
from benchmarks.pages.parts import code


def tables(chosen: Sequence[Mapping[str, Any]], figures: Mapping[str, Any]) -> Iterator[str]:
    """Each of the `chosen` tables of headlines.yaml: what it `shows`, then its cells."""
    for table in chosen:
        yield table["shows"]
        yield _table(table["parts"], table["columns"], figures)


def _table(parts: str, columns: Mapping[str, str], figures: Mapping[str, Any]) -> str:
    """A cell whose figures were not measured is empty."""
    cells = {}
    for path, of in _parts(figures):
        if found := re.fullmatch(parts, path):
            medians = {name: median(each) for name, each in of.items() if isinstance(each, list)}
            for column, cell in columns.items():
                with contextlib.suppress(KeyError):
                    at = code(found["row"]), column.format(**found.groupdict())
                    cells[at] = cell.format(**of, median=medians)
    return report.grid("", cells)


def _parts(of: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each mapping inside, by the names that lead to it."""
    for name, value in of.items():
        if isinstance(value, Mapping):
            yield f"{path}{name}", value
            yield from _parts(value, f"{path}{name}/")
