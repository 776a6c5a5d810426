"""Keep results and write pages from them: make bench-summary ARGS="FILE ..."

Each FILE is what a benchmark printed, which ends with its result. The result is appended to
docs/benchmarks/results. docs/benchmarks/README.md and the figures on other pages are written from
the last kept runs. A result is marked as stale where git has a later commit that changed the
measured code. Without a FILE only the pages are written.
"""

from __future__ import annotations

import contextlib
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import kept_results, measured
from benchmarks.harness.results import report, revision
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import parser_of
from benchmarks.headlines import LINES, PAGES, SENTENCES, TABLE
from benchmarks.kept_results import History, Result
from benchmarks.measured import Stale
from benchmarks.pages.parts import code, span
from common.errors import Problem

PAGE = report.PAGES / "README.md"
# The page of each benchmark that has no docs/benchmarks/NAME.md.
OWN_PAGES = {
    "index": "prefix-index.md",
    "resume": "../resuming.md",
    "budgets": "../budgets.md",
    "canary": "../models.md",
    "planned": "../planning.md",
    "drill-hangs": "../drills.md",
    "tiers": "../kv-tiers.md",
}
BEGINS, ENDS = "<!-- Written by `make bench-summary`: {}. -->\n", "<!-- Until here. -->\n"
README = "README.md"
# In README.md's table, figures that differ by at most this percentage are equal.
EQUAL = 5
CAVEATS = (
    f'"Equal" means a difference of at most {EQUAL}%. The comparisons run on two CPU cores with a '
    "small model, and the backtest simulates its engines. Antefix has not been compared with llm-d "
    "or Dynamo, and not on equal terms with Ray Serve LLM."
)
NONE_CURRENT = (
    "No comparison with another project has been rerun on the current code, so this page quotes "
    "none. For older "
    "ones, which are marked as stale, see [Benchmarks](docs/benchmarks/README.md) and the "
    "[comparison](docs/comparison.md#what-was-measured)."
)
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
    """The whole of docs/benchmarks/README.md."""
    without_page = {name: of for name, of in history.items() if not _page_of(name)}
    return report.filled(
        __file__,
        lines=_lines(lines, history, stale),
        benchmarks=_rows(_benchmarks(history, stale)),
        notes=_notes(history),
        missed=_rows(_goals(history, met=False)),
        met=_rows(_goals(without_page, met=True)),
    )


def places() -> list[str]:
    """The other pages with figures, from the repository's root."""
    return sorted({README, *(of["page"] for of in SENTENCES.values()), *map(_place_of, PAGES)})


def with_figures(place: str, text: str, history: History, stale: Stale) -> str:
    """The page at `place`, now `text`, with the last kept figures of its benchmarks."""
    for name, write in _written_at(place).items():
        if name in history:
            text = _with_block(text, name, write(history[name], stale.get(name)))
    if place == README:
        text = _with_block(text, "table", _table(history, stale))
    return text


def _with_block(text: str, name: str, block: str) -> str:
    before, begin, rest = text.partition(BEGINS.format(name))
    _, end, after = rest.partition(ENDS)
    return f"{before}{begin}\n{block}\n\n{end}{after}"


def _written_at(place: str) -> dict[str, Callable[[Sequence[Result], str | None], str]]:
    """By benchmark, what writes its figures from its runs and the commit that made them stale."""
    sentences = {
        name: partial(_sentence, name, of) for name, of in SENTENCES.items() if of["page"] == place
    }
    pages = {name: partial(_blocks, name) for name in PAGES if _place_of(name) == place}
    return {**sentences, **pages}


def _place_of(name: str) -> str:
    return f"docs/benchmarks/{OWN_PAGES.get(name, f'{name}.md')}"


def _blocks(name: str, runs: Sequence[Result], since: str | None) -> str:
    of = runs[-1]
    blocks = [block if block[0] == "|" else _filled(block) for block in PAGES[name](runs)]
    if note := of["figures"].get("note"):
        blocks.append(_filled(f"**Note**: {note}."))
    mark = f" **Stale** since {since}." if since else ""
    blocks.append(_filled(f"{code(_command(of))}: {report.in_short(of)}{mark}"))
    return "\n\n".join(blocks)


def _command(of: Result) -> str:
    """Without `--write`, which some benchmarks no longer have."""
    return re.sub(r" ?--write", "", str(of["command"])).replace(' ARGS=""', "")


def _table(history: History, stale: Stale) -> str:
    """The table of README.md, or a sentence if no result is of the current code."""
    rows = [
        _compared(row, history[row["benchmark"]][-1])
        for row in TABLE
        if row["benchmark"] in history and not stale.get(row["benchmark"])
    ]
    if not rows:
        return _filled(NONE_CURRENT)
    head = ("What was measured", "Antefix", "Compared with", "Result", "Details")
    table = _rows([head, ["--"] * len(head), *rows])
    return "\n\n".join([table, _filled(CAVEATS)])


def _compared(row: Mapping[str, str], of: Result) -> Sequence[object]:
    relative = float(row["relative"].format(**of))
    percent = round(100 * relative) - 100
    result = "equal" if abs(percent) <= EQUAL else "better" if percent < 0 else "worse"
    return row["what"], report.change(relative), row["peer"], result, f"[figures]({row['page']})"


def _sentence(name: str, of: Mapping[str, str], runs: Sequence[Result], since: str | None) -> str:
    # in a format a dot begins an attribute
    judged = report.with_changes(runs[-1]["goals"])
    goals = {what.replace(".", ""): goal for what, goal in judged.items()}
    met = sum(goal["met"] for goal in goals.values())
    mark = f" **Stale**: the code has changed ({code(name)} since {since})." if since else ""
    date = runs[-1]["date"]
    text = of["text"].format(**goals, met=met, judged=len(goals), date=date) + mark
    return "\n\n".join(b if b[0] == "|" else _filled(b) for b in text.split("\n\n"))


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False)


def _lines(templates: Sequence[str], history: History, stale: Stale) -> str:
    written = []
    results = {
        name: {**of, "goals": report.with_changes(of["goals"])}
        for name, of in kept_results.last(history).items()
    }
    for template in templates:
        with contextlib.suppress(KeyError):
            mark = " **Stale**." if any(map(stale.get, NAMED.findall(template))) else ""
            written.append(f"- {template.format(**results)}{mark}")
    return "\n".join(written)


def _benchmarks(history: History, stale: Stale) -> Iterator[Sequence[object]]:
    for name, runs in sorted(history.items()):
        result, of_page = runs[-1], _page_of(name)
        link = f"[{code(name)}]({of_page})" if of_page else code(name)
        met = [goal["met"] for goal in result["goals"].values()]
        since = stale.get(name, "not known") or "current"
        since = "benchmark removed" if name in measured.REMOVED else since
        yield (
            *(link, f"{sum(met)}/{len(met)}", len(runs), result["date"]),
            *(_commit(result), f"**{since}**" if stale.get(name) else since),
        )


def _commit(result: Result) -> str:
    if not (commit := result.get("commit")):
        return ""
    recorded = ", recorded" if "commit_from" in result else ""
    return f"{commit[:7]}{recorded}{', with changes' if result.get('dirty') else ''}"


def _notes(history: History) -> str:
    notes = {name: runs[-1]["figures"].get("note") for name, runs in sorted(history.items())}
    return "".join(f"\n- {code(name)}: {note}.\n" for name, note in notes.items() if note)


def _page_of(name: str) -> str | None:
    page = OWN_PAGES.get(name, f"{name}.md")
    return page if (PAGE.parent / page).exists() else None


def _goals(history: History, met: bool) -> Iterator[Sequence[object]]:
    for name, runs in sorted(history.items()):
        for what, goal in runs[-1]["goals"].items():
            if goal["met"] is met:
                yield code(f"{name}/{what}"), f"{goal['figure']:g}", _bound(goal), span(runs, what)


def _bound(goal: Mapping[str, Any]) -> str:
    sign = {"at least": "≥", "at most": "≤", "below": "<"}
    words, _, bound = report.wanted(goal).rpartition(" ")
    return f"{sign[words]}{bound}"


def _rows(rows: Iterable[Sequence[object]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("summary", __doc__)
    parser.add_argument("file", type=Path, nargs="*")
    for result in [read(path) for path in parser.parse_args().file]:
        kept_results.append(result)
    history = kept_results.read()
    stale = measured.stale(kept_results.last(history))
    measured.FILE.write_text(json.dumps(stale, indent=1) + "\n")
    PAGE.write_text(page(history, stale))
    for place in places():
        file = revision.ROOT / place
        file.write_text(with_figures(place, file.read_text(), history, stale))


if __name__ == "__main__":
    main()
