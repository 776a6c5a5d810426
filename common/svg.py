"""Figures as small SVGs. The same numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Antefix's colour stands out, and colour-blind readers can distinguish all of them.
OURS, OTHERS, TAIL, LIMIT = "#0072b2", "#9a9a9a", "#404040", "#d55e00"


@contextmanager
def drawn(
    file: Path | TextIO,
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    *,
    top: float = 1.0,
    **layout: Any,
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure and its axes (rows x columns), and write it to `file` at the end.

    `size`: width and height in inches. The axes end at `top` of the height, and the rest is for a
    legend. `layout`: arguments of `Figure.subplots`. Raises ImportError without matplotlib.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Text stays text, and ids come from a fixed salt instead of a random one.
    style = mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "antefix",
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 8,
            "axes.titlesize": 9,
        }
    )
    with style:
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False, **layout)
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        figure.tight_layout(rect=(0, 0, 1, top))
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
