"""Runbooks: the meaning, checks and remedies of an alert, one Markdown page per alert.

Their text is in runbooks.yaml. A file of that name next to a custom SLO file takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, RootModel

from common.section import Section
from common.yaml_file import Fault, FileError
from observability.alerts.on_kubernetes import PREPARATION, equivalents
from observability.alerts.rules import alerts
from observability.alerts.slo_file import SHIPPED, SloFile, read

FILE_NAME = "runbooks.yaml"
INDEX = "README.md"

# Below the remedies of each runbook, and what it links to.
_APPLY = f"If a step changes the fleet file, [apply the change]({INDEX}#apply-a-change)."
_APPLYING = """\
Settings such as `autoscaling.max_replicas` are keys of the [fleet file](../fleet-file.md). On one
machine or a Ray cluster, change the file and run `antefix update FILE`. On Kubernetes, the keys are
under `fleet` in your values. Change them and run `helm upgrade`:

```sh
antefix k8s diff antefix --namespace antefix --values my-values.yaml    # what the upgrade restarts
helm upgrade antefix helm/antefix --namespace antefix --values my-values.yaml
```

[Upgrades](../kubernetes/upgrade.md#what-a-change-restarts) lists what each change restarts."""

_MARK = "<!-- From runbooks.yaml. -->\n"

_INTRODUCTION = (
    "Respond to a page at any hour, and to a ticket during working hours. First read the"
    " meaning of the alert, then follow the steps under Check and Fix. The alert's label `owner`"
    " names its route in Alertmanager, such as `serving`. A condition with no delay fires at the"
    " first evaluation at which it is true."
)

Steps = Annotated[Sequence[str], Field(min_length=1)]


class Runbook(Section):
    """The meaning of an alert, where to look, what to do; Markdown, one line each."""

    means: str
    look: Steps
    do: Steps


class _Runbooks(RootModel[Mapping[str, Runbook]]):
    """Runbooks by the alert's name."""


def load(slo_file: SloFile, path: Path | None = None) -> dict[str, Runbook]:
    """Return the runbook of every alert of the SLO file at `path` (None: the built-in one), by
    name.

    Raises `FileError` for an alert without one.
    """
    beside = (path or SHIPPED).with_name(FILE_NAME)
    texts = dict(read(SHIPPED.with_name(FILE_NAME), _Runbooks, FILE_NAME).root)
    if beside.exists():
        texts |= read(beside, _Runbooks, FILE_NAME).root
    for name in slo_file.alert_names():
        if name not in texts:
            remedy = "Write its means, look and do into this file"
            fault = Fault("", None, f"the alert {name} has no runbook", remedy)
            raise FileError(str(beside), [fault])
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
    parts = [f"# {name}", _MARK + "\n" + notes["description"]]
    if dashboard := notes.get("dashboard"):
        parts.append(f"Dashboard: *{dashboard}*.")
    steps = [*_with_kubernetes([*runbook.look, *runbook.do])]
    look, do = steps[: len(runbook.look)], steps[len(runbook.look) :]
    parts += ["## Meaning", runbook.means]
    parts += ["## Check", _numbered(look), "## Fix", _numbered(do), _APPLY]
    parts += ["## Alert rules", *map(_condition, rules)]
    return "\n\n".join(parts) + "\n"


def _condition(rule: Mapping[str, Any]) -> str:
    labels = rule["labels"]
    team = f"the on-call team of the route `{labels['owner']}`"
    action = {"page": f"pages {team}", "ticket": f"opens a ticket for {team}"}[labels["severity"]]
    when = f"once it has been true for {rule['for']}" if "for" in rule else "with no delay"
    intro = f"This condition {action} {when}:"
    return f"{intro}\n\n```promql\n{rule['expr']}\n```"


def _numbered(steps: Sequence[str]) -> str:
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _with_kubernetes(steps: Sequence[str]) -> Iterator[str]:
    """Return the steps and, in paragraphs below each, its commands on Kubernetes, once a page."""
    shown: set[str] = set()
    for step in steps:
        new = [line for line in equivalents(step) if line not in shown]
        shown.update(new)
        yield "".join([step, *(f"\n\n   On Kubernetes: {line}." for line in new)])


def _linked(page: str, names: Iterable[str]) -> str:
    """Return the page with links for all alerts in its text, except its title."""
    title, newline, text = page.partition("\n")
    known = "|".join(sorted(names, key=len, reverse=True))
    return title + newline + re.sub(rf"\b({known})\b", r"[\1](\1.md)", text)


def _index(rules: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    items = []
    for name, of in rules.items():
        severities = ", ".join(rule["labels"]["severity"] for rule in of)
        about = of[0]["annotations"]["description"]
        items.append(f"- [{name}]({name}.md) ({severities}): {about}")
    parts = ["# Runbooks", f"{_MARK}\n{_INTRODUCTION}", "\n".join(items)]
    parts += ["## Apply a change", _APPLYING, "## On Kubernetes", PREPARATION]
    return "\n\n".join(parts) + "\n"
