"""Every figure of a result, in tables that are the same for all benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness.results import report
from benchmarks.pages import chosen
from benchmarks.pages.parts import Blocks, Runs, estimate, goals, met, number

Group = dict[str, Mapping[str, Any]]
"""What is compared -> its figures by name."""
# A table with more columns is turned, so that it has these as rows.
MOST_COLUMNS = 8
PERCENTILE = re.compile(r"(.*)_(p\d+)")
INTERVAL = {"value", "low", "high"}


def page(text: str, only: Sequence[Mapping[str, Any]] | None, runs: Runs) -> Blocks:
    """The template `text`, filled in with the last run; its figures and its goals in tables.
    `only`: these tables of chosen figures, instead of tables of all."""
    last = runs[-1]
    goals_in_text = report.with_changes(last["goals"])
    yield f"{text.format(figures=last['figures'], goals=goals_in_text)} {met(runs)}"
    figures = last["figures"]
    yield from tables(figures) if only is None else chosen.tables(only, figures)
    yield goals(runs)


def tables(figures: Mapping[str, Any]) -> Iterator[str]:
    """Tables of the parts whose figures have the same names, of percentiles, and of the rest."""
    single: dict[str, Any] = {}
    for group in _groups(_parts(figures)):
        if len(group) > 1:
            yield _compared(group)
        else:
            ((part, of),) = group.items()
            single |= {f"{part} {name}".strip(): figure for name, figure in of.items()}
    percentiles = {
        (_words(found[1]), found[2]): _cell(figure)
        for name, figure in single.items()
        if (found := PERCENTILE.fullmatch(name))
    }
    if percentiles:
        yield report.grid("", percentiles)
    rows = [(_words(n), _cell(of)) for n, of in single.items() if not PERCENTILE.fullmatch(n)]
    if rows:
        yield report.padded([("", "Figure"), *rows])


def _parts(of: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each mapping inside, by the names that lead to it, with those of its values that are none."""
    inside = {name: named for name, value in of.items() if (named := _named(value)) is not None}
    if figures := {name: value for name, value in of.items() if name not in inside}:
        yield path, figures
    for name, value in inside.items():
        yield from _parts(value, f"{path} {name}".strip())


def _named(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return None if value.keys() >= INTERVAL else value
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return {one["name"]: {key: of for key, of in one.items() if key != "name"} for one in value}
    return None


def _groups(parts: Iterator[tuple[str, Mapping[str, Any]]]) -> list[Group]:
    groups: list[Group] = []
    for path, figures in parts:
        for group in groups:
            names = next(iter(group.values())).keys()
            if len(names & figures.keys()) * 2 >= len(names | figures.keys()):
                group[path] = figures
                break
        else:
            groups.append({path: figures})
    return groups


def _compared(group: Group) -> str:
    cells = {
        (_words(part), _words(name)): _cell(figure)
        for part, figures in group.items()
        for name, figure in figures.items()
    }
    if len({name for _, name in cells}) > MOST_COLUMNS:
        cells = {(name, part): cell for (part, name), cell in cells.items()}
    return report.grid("", cells)


def _words(name: str) -> str:
    return re.sub(r"\bus\b", "µs", name.replace("_", " "))


def _cell(figure: Any) -> str:
    if figure is None:
        return ""
    if isinstance(figure, Mapping):
        return estimate(figure, ".4g")
    if isinstance(figure, Sequence) and not isinstance(figure, str):
        return ", ".join(map(_cell, figure))
    return number(figure) if isinstance(figure, int | float) else str(figure)
