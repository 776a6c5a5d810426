"""Runbooks: the meaning, checks and remedies of an alert, one Markdown page per alert.

Their text is in runbooks.yaml. A file of that name next to a custom SLO file takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, RootModel

from common.errors import Problem
from common.section import Section
from observability.on_kubernetes import equivalents
from observability.rules import alerts
from observability.slo import SHIPPED, SloFile, read

FILE_NAME = "runbooks.yaml"
INDEX = "README.md"

_MARK = "<!-- Written by `antefix slo render`. Change runbooks.yaml and the SLO file instead. -->\n"

_INTRODUCTION = """\
Each page says what an alert means, where to look and what to do. Pages are for any hour, tickets
for working hours.

`antefix status` and `antefix logs` read the fleet on this machine. Each step that
names them is followed by its commands on Kubernetes, for a release `antefix` in the namespace
`antefix`."""

Steps = Annotated[Sequence[str], Field(min_length=1)]


class Runbook(Section):
    """The meaning of an alert, where to look, what to do; Markdown, a line each."""

    means: str
    look: Steps
    do: Steps


class _Runbooks(RootModel[Mapping[str, Runbook]]):
    """Runbooks by the alert's name."""


def load(slo_file: SloFile, path: Path | None = None) -> dict[str, Runbook]:
    """Return the runbook of every alert of the SLO file at `path` (None: the built-in one), by
    name.

    Raises `Problem` for an alert without one.
    """
    beside = (path or SHIPPED).with_name(FILE_NAME)
    texts = dict(read(SHIPPED.with_name(FILE_NAME), _Runbooks, FILE_NAME).root)
    if beside.exists():
        texts |= read(beside, _Runbooks, FILE_NAME).root
    for name in slo_file.alert_names():
        if name not in texts:
            remedy = f"write its means, look and do into {beside}"
            raise Problem(f"the alert {name} has no runbook", remedy)
    return {name: texts[name] for name in slo_file.alert_names()}


def render(slo_file: SloFile, runbooks: Mapping[str, Runbook]) -> dict[str, str]:
    """Return pages by file name: one per alert, and their index."""
    rules: dict[str, list[dict[str, Any]]] = {name: [] for name in slo_file.alert_names()}
    for rule in alerts(slo_file):
        rules[rule["alert"]].append(rule)
    pages = {f"{name}.md": _page(name, rules[name], runbooks[name]) for name in rules}
    return {**{name: _linked(page, rules) for name, page in pages.items()}, INDEX: _index(rules)}


def _page(name: str, rules: Sequence[Mapping[str, Any]], runbook: Runbook) -> str:
    notes = rules[0]["annotations"]
    parts = [f"# {name}", _MARK + "\n" + notes["description"], *map(_condition, rules)]
    if dashboard := notes.get("dashboard"):
        parts.append(f"Dashboard: *{dashboard}*.")
    parts += ["## What it means", runbook.means]
    parts += ["## Where to look", _numbered(runbook.look), "## What to do", _numbered(runbook.do)]
    return "\n\n".join(parts) + f"\n\nAll runbooks: [{INDEX}]({INDEX}).\n"


def _condition(rule: Mapping[str, Any]) -> str:
    labels = rule["labels"]
    when = f"once this has held for {rule['for']}" if "for" in rule else "as soon as this holds"
    intro = f"A {labels['severity']} for the team *{labels['owner']}*, {when}:"
    return f"{intro}\n\n```promql\n{rule['expr']}\n```"


def _numbered(steps: Sequence[str]) -> str:
    return "\n".join(f"{number}. {_with_kubernetes(step)}" for number, step in enumerate(steps, 1))


def _with_kubernetes(step: str) -> str:
    """Return the step and, in paragraphs below it, its commands on Kubernetes."""
    return "".join([step, *(f"\n\n   On Kubernetes: {line}." for line in equivalents(step))])


def _linked(page: str, names: Iterable[str]) -> str:
    """Return the page with links for all alerts in its text, except its title."""
    title, newline, text = page.partition("\n")
    known = "|".join(sorted(names, key=len, reverse=True))
    return title + newline + re.sub(rf"\b({known})\b", r"[\1](\1.md)", text)


def _index(rules: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rows = ["| Alert | Severity | About |", "| -- | -- | -- |"]
    for name, of in rules.items():
        severities = ", ".join(rule["labels"]["severity"] for rule in of)
        about = of[0]["annotations"]["description"]
        rows.append(f"| [{name}]({name}.md) | {severities} | {about} |")
    return "\n\n".join(["# Runbooks", f"{_MARK}\n{_INTRODUCTION}", "\n".join(rows)]) + "\n"
