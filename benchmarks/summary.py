"""What was measured, on one page: make bench-summary ARGS="FILE ..."

Each FILE is what a benchmark printed, which ends with its result. It is appended to the results
that are kept in docs/benchmarks/results. docs/benchmarks/README.md, the pages of WRITTEN and the
figures on some other pages are written from them: the last run, with how many there are and their
range. A result is marked as stale where git says that what it measured has changed since. Without a
FILE only these are written.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import kept_results, measured
from benchmarks.backtest import page as backtest
from benchmarks.headlines import INTRODUCTIONS, LINES, PLACES, SENTENCES, TABLES
from benchmarks.kept_results import History, Result
from benchmarks.measured import Stale
from benchmarks.routing import page as routing
from benchmarks.scale import page as scale
from benchmarks.stand import report, revision
from benchmarks.stand.options import parser_of
from common.errors import Problem

PAGE = report.PAGES / "README.md"
# Whose page is not NAME.md.
OWN_PAGES = {
    "index": "prefix-index.md",
    "resume": "../resuming.md",
    "budgets": "../budgets.md",
    "drill-hangs": "../drills.md",
}
# Of each benchmark whose page has no figures but those of its last result.
WRITTEN: Mapping[str, Callable[[Result], str]] = {
    "backtest": backtest.page,
    "routing": routing.page,
    "scale": scale.page,
}
BEGINS, ENDS = "<!-- Written by `make bench-summary`: {}. -->\n", "<!-- Until here. -->\n"
# The benchmarks that a template takes figures of.
NAMED = re.compile(r"\{([a-z-]+)\[")


def read(path: Path) -> dict[str, Any]:
    """The result that a benchmark's output ends with. Raises Problem."""
    try:
        last = path.read_text(encoding="utf-8").strip().rpartition("\n")[2]
        result: dict[str, Any] = json.loads(last)
        result["benchmark"], result["figures"], result["goals"]
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}", "name another file") from None
    except (ValueError, KeyError, TypeError):
        raise Problem(
            f"{path} does not end with the line of JSON that a benchmark ends with",
            "keep all that it prints: make bench-index | tee index.out",
        ) from None
    return result


def page(history: History, stale: Stale, lines: Sequence[str] = LINES) -> str:
    """The whole document."""
    without_page = {name: of for name, of in history.items() if not _page_of(name)}
    return f"""\
# What was measured

<!-- Written by `make bench-summary` from results/. -->

{_lines(lines, history, stale)}

## Results that are kept

The folder `results` has every run that was kept, a line of JSON each. No line is ever replaced, so
a run that missed a goal stays there. Figures here are of the last run. *Stale* results are of code
that a later commit changed; the first such commit is named.

| Benchmark | Command | Goals met | Runs kept | Measured | Code since |
| -- | -- | -- | -- | -- | -- |
{_rows(_benchmarks(history, stale))}

A commit that is marked `(recorded)` is the one that recorded the result: results named none before.
Each result of peers includes the kept runs of those before it.
Pages in this folder without a row here are older than the results that are kept. Each begins with
its command, machine and date.

## Goals that were missed

| Benchmark | Goal | Figure | Wanted | All runs |
| -- | -- | -- | -- | -- |
{_rows(_goals(history, met=False))}

## Goals that were met, of benchmarks without a page

| Benchmark | Goal | Figure | Wanted | All runs |
| -- | -- | -- | -- | -- |
{_rows(_goals(without_page, met=True))}
"""


def with_figures(place: str, text: str, history: History, stale: Stale) -> str:
    """The `text` of the page at `place` with its benchmarks' last kept figures, marked where they
    are stale."""
    for name in (name for name, of in PLACES.items() if of == place):
        before, begin, rest = text.partition(BEGINS.format(name))
        _, end, after = rest.partition(ENDS)
        told = _table(name, history, stale) if name in TABLES else _sentence(name, history, stale)
        text = f"{before}{begin}\n{told}\n\n{end}{after}"
    return text


def _table(name: str, history: History, stale: Stale) -> str:
    runs = history[name]
    of = runs[-1]
    rows = [("", "Measured", "All runs", "Goal")]
    for goal_name, what in TABLES[name].items():
        if (goal := of["goals"].get(goal_name)) is None:
            continue
        met = "met" if goal["met"] else "**not met**"
        judged = f"{report.wanted(goal)}: {met}"
        rows.append((what, f"{goal['figure']:.3g}", _span(runs, goal_name), judged))
    versions = ", ".join(f"{package} {version}" for package, version in of["versions"].items())
    machine = f"{of['date']}, on {of['cores']} cores of {of['cpu']}; Python {of['python']}"
    introduction = _introduction(name, of)
    text = f"{introduction}{report.padded(rows)}\n\n`{of['command']}`: {machine}, {versions}."
    return f"{text}{_mark([name], stale)}"


def _introduction(name: str, of: Result) -> str:
    for template in INTRODUCTIONS.get(name, ()):
        with contextlib.suppress(KeyError):
            figures = {name: _listed(figure) for name, figure in of["figures"].items()}
            return f"{_filled(template.format(**figures))}\n\n"
    return ""


def _listed(figure: Any) -> Any:
    """Figures of several seeds, as a text shows them."""
    if not isinstance(figure, list) or not all(isinstance(one, int | float) for one in figure):
        return figure
    return ", ".join(f"{one:.3g}" for one in figure)


def _sentence(name: str, history: History, stale: Stale) -> str:
    # in a format a dot begins an attribute
    goals = {what.replace(".", ""): goal for what, goal in history[name][-1]["goals"].items()}
    met = sum(goal["met"] for goal in goals.values())
    for template in SENTENCES[name]:
        with contextlib.suppress(KeyError):
            return _filled(
                template.format(**goals, met=met, judged=len(goals)) + _mark([name], stale)
            )
    raise LookupError(f"no sentence has only figures that {name} has")


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False)


def _lines(templates: Sequence[str], history: History, stale: Stale) -> str:
    told, results = [], kept_results.last(history)
    for template in templates:
        with contextlib.suppress(KeyError):
            mark = _mark(NAMED.findall(template), stale)
            told.append(f"- {template.format(**results)}{mark}")
    return "\n".join(told)


def _mark(names: Sequence[str], stale: Stale) -> str:
    """What a reader has to know of figures of these benchmarks; empty where they are of the code
    as it is."""
    changed = [name for name in dict.fromkeys(names) if stale.get(name)]
    if not changed:
        return ""
    since = ", ".join(f"`{name}` since {stale[name]}" for name in changed)
    return f" **Stale**: the code has changed ({since})."


def _benchmarks(history: History, stale: Stale) -> Iterator[Sequence[object]]:
    for name, runs in sorted(history.items()):
        result, of_page = runs[-1], _page_of(name)
        link = f"[{name}]({of_page})" if of_page else name
        met = [goal["met"] for goal in result["goals"].values()]
        where = f"{result['date']}, {result['cores']} cores of {result['cpu']}{_commit(result)}"
        if note := result["figures"].get("note"):
            where += f" ({note})"
        since = {None: "not known", "": "as measured"}
        code = since.get(stale.get(name), f"**stale**: {stale.get(name)}")
        yield (
            *(link, f"`{result['command']}`", f"{sum(met)} of {len(met)}", len(runs)),
            *(where, code),
        )


def _commit(result: Result) -> str:
    if not (commit := result.get("commit")):
        return ""
    recorded = " (recorded)" if "commit_from" in result else ""
    dirty = " with uncommitted changes" if result.get("dirty") else ""
    return f", at {commit[:7]}{recorded}{dirty}"


def _page_of(name: str) -> str | None:
    page = OWN_PAGES.get(name, f"{name}.md")
    return page if (PAGE.parent / page).exists() else None


def _goals(history: History, met: bool) -> Iterator[Sequence[object]]:
    for name, runs in sorted(history.items()):
        for what, goal in runs[-1]["goals"].items():
            if goal["met"] is met:
                words = what.replace("_", " ")
                yield name, words, f"{goal['figure']:g}", report.wanted(goal), _span(runs, what)


def _span(runs: Sequence[Result], goal: str) -> str:
    count, least, most = kept_results.span(runs, goal)
    return f"{least:.4g} to {most:.4g} in {count}" if count > 1 else "one"


def _rows(rows: Iterator[Sequence[object]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def main() -> None:
    parser = parser_of("summary", __doc__)
    parser.add_argument("file", type=Path, nargs="*")
    try:
        for result in [read(path) for path in parser.parse_args().file]:
            kept_results.append(result)
    except Problem as problem:
        sys.exit(f"error: {problem}")
    history = kept_results.read()
    stale = measured.stale(kept_results.last(history))
    measured.FILE.write_text(json.dumps(stale, indent=1) + "\n")
    PAGE.write_text(page(history, stale))
    for name, written in WRITTEN.items():
        (PAGE.parent / f"{name}.md").write_text(written(history[name][-1]))
    for place in sorted(set(PLACES.values())):
        file = revision.ROOT / place
        file.write_text(with_figures(place, file.read_text(), history, stale))


if __name__ == "__main__":
    main()
