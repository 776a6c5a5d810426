"""What pages say of results, for `benchmarks.summary`: functions, and templates to fill in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.pages import drills, figures, kinds
from benchmarks.pages.parts import Blocks, Runs

_TEMPLATES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
LINES: Sequence[str] = _TEMPLATES["overview"]
# Benchmark -> the `page` that has a sentence on it, and its `text`.
SENTENCES: Mapping[str, Mapping[str, str]] = _TEMPLATES["sentences"]

# The rows of README.md's table, from the results that measure the current code.
TABLE: Sequence[Mapping[str, str]] = _TEMPLATES["table"]

# Tables on the pages of benchmarks with too many figures for tables of all.
CHOSEN: Mapping[str, Sequence[Mapping[str, Any]]] = _TEMPLATES["chosen"]

# On the page of each benchmark.
PAGES: Mapping[str, Callable[[Runs], Blocks]] = {
    "drills": drills.page,
    "kinds": kinds.page,
    **{
        name: partial(figures.page, text, CHOSEN.get(name))
        for name, text in _TEMPLATES["pages"].items()
    },
}
