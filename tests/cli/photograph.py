"""Pictures of `antefix status` and `antefix bench` for docs/laptop.md and docs/bench.md.

`python -m tests.cli.photograph` writes docs/images/terminal-{status,bench}.svg. Each shows what the
command prints for tests/cli/recorded/*.json, so each run writes the same bytes. They are what it
printed with `-o json` on the laptop fleet, on two cores that others used too (2026-11-28). To
record again: `antefix up`, `antefix bench` as in LOAD, and `antefix status` while that runs.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from cli.fleet.status_tables import ShownFleet, render
from loadgen.table import table

ROOT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).parent / "recorded"
IMAGES = ROOT / "docs" / "images"
COLUMNS = 92
LOAD = "shared_system --length-scale 0.2 --rate 1 --answer-tokens 16 --ttft-slo 2"
# A reader's browser loads nothing: the fonts are those of its machine.
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Picture(NamedTuple):
    command: str
    shown: Callable[[Mapping[str, Any]], RenderableType]


def _status(answer: Mapping[str, Any]) -> RenderableType:
    rows = [("page", answer["page_url"]), ("metrics", answer["metrics_url"])]
    return render(ShownFleet(answer["base_url"], {}, rows, answer))


def _bench(result: Mapping[str, Any]) -> RenderableType:
    return Text(table(result))


PICTURES = {
    "status": Picture("antefix status", _status),
    "bench": Picture(f"antefix bench {LOAD}", _bench),
}


def svg(name: str) -> str:
    command, shown = PICTURES[name]
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    console = Console(
        record=True,
        file=io.StringIO(),
        width=COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        legacy_windows=False,
        no_color=False,
    )
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(shown(recorded))
    drawn = console.export_svg(title=command, unique_id=f"antefix-{name}")
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.S)
    drawn = drawn.replace("Fira Code, monospace", FONT).replace("arial", "sans-serif")
    return re.sub(r"[ \t]+$", "", drawn, flags=re.M)


if __name__ == "__main__":
    for name in PICTURES:
        (IMAGES / f"terminal-{name}.svg").write_text(svg(name))
