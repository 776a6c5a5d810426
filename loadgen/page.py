"""The result of a run as one self-contained HTML page: figures, plots, and the data as JSON."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from common.svg import LIMIT, OTHERS, OURS, TAIL, drawn
from loadgen import table
from loadgen.player import SentRequest
from loadgen.summary import e2e_s, gaps_s, tpot_s, ttft_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More dots than this are drawn as pixels, because each dot adds 100 bytes to the page.
MOST_DOTS = 2000
# A curve with more points looks the same.
MOST_POINTS = 1000

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
h1 { font-size: 1.4rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
table.ms th + th, table.ms td { text-align: right; font-variant-numeric: tabular-nums; }
table.ms td:first-child { text-align: left; }
tr { border-bottom: 1px solid #ddd; }
.warning { border-left: 4px solid #d55e00; padding: .5rem 1rem; background: #fdf3ec; }
svg { width: 100%; height: auto; }
.note { color: #555; }
"""
_NOTE = """Latencies count from when a request was due by the plan, not from when it was sent: a
slow server delays no arrival, and a late client hides nothing (no coordinated omission). Later
turns of a conversation are due when their user has thought about the answer before. Latencies are
of requests that were answered to their end; failed requests meet no SLO."""


def page(result: Mapping[str, Any], requests: Sequence[SentRequest]) -> str:
    title = f"{result['workload']} on {result['model']}"
    head = "".join(f"<th>{column}</th>" for column in ("ms", *table.COLUMNS))
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows(result)
    )
    facts = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(words)}</td></tr>"
        for name, words in table.facts(result)
    )
    warnings = "".join(f'<p class="warning">{html.escape(w)}</p>' for w in result["warnings"])
    # no text in it can close the element
    data = json.dumps(result).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}: antefix bench</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p>{html.escape(offered(result))}</p>
{warnings}
<table class="ms"><tr>{head}</tr>{rows}</table>
<table>{facts}</table>
{plots(result, requests)}
<p class="note">{_NOTE}</p>
<script type="application/json" id="result">{data}</script>
</body>
</html>
"""


def offered(result: Mapping[str, Any]) -> str:
    """Return a sentence that describes the traffic and the target."""
    arrivals = {
        "poisson": "Poisson arrivals, {rate_per_s:g} requests a second",
        "ramp": "arrivals from {rate_per_s:g} to {ramp_to_per_s:g} requests a second",
        "trace": "arrivals as recorded, {scale:g} times as many",
    }[result["arrivals"]].format(**result)
    return (
        f"{result['base_url']}: {arrivals}, for {result['seconds']:g} s; lengths"
        f" {result['lengths']:g} times, seed {result['seed']}, run"
        f" {result['run_id']}, {result['date']}."
    )


def plots(result: Mapping[str, Any], requests: Sequence[SentRequest]) -> str:
    """Return the plots as an SVG element."""
    file = io.StringIO()
    slo = (result["goodput"] or {"slo": {}})["slo"]
    whole = [request for request in requests if request.error is None]
    with drawn(file, (10, 9), 3, 2) as (_, axes):
        (over_time, under_way), (ttfts, tpots), (gaps, ends) = axes
        _over_time(over_time, requests, slo.get("ttft_s"))
        _under_way(under_way, requests)
        _share(ttfts, "TTFT", [ttft_s(r) for r in whole], slo.get("ttft_s"))
        _share(tpots, "TPOT", [tpot_s(r) for r in whole], slo.get("tpot_s"))
        _share(gaps, "gaps between tokens", [g for r in whole for g in gaps_s(r)], None)
        _share(ends, "end to end", [e2e_s(r) for r in whole], slo.get("e2e_s"))
    _, begin, svg = file.getvalue().partition("<svg")
    return begin + svg


def _over_time(axis: Axes, requests: Sequence[SentRequest], slo_s: float | None) -> None:
    found = [
        (r.due_s, ttft) for r in requests if r.error is None and (ttft := ttft_s(r)) is not None
    ]
    axis.plot(
        [due for due, _ in found],
        [ttft for _, ttft in found],
        ".",
        color=OURS,
        markersize=3,
        rasterized=len(found) > MOST_DOTS,
    )
    failed = [r.due_s for r in requests if r.error is not None]
    axis.plot(failed, [0.0] * len(failed), "x", color=LIMIT, rasterized=len(failed) > MOST_DOTS)
    if slo_s is not None:
        axis.axhline(slo_s, color=LIMIT, linewidth=1)
    axis.set(title="TTFT of each request (failed: x), s", xlabel="due, s", ylim=(0, None))


def _under_way(axis: Axes, requests: Sequence[SentRequest]) -> None:
    changes = sorted([(r.due_s, 1) for r in requests] + [(r.ended_s, -1) for r in requests])
    counts = list(accumulate(change for _, change in changes))
    axis.step(
        *_thinned([at for at, _ in changes], [float(count) for count in counts]),
        where="post",
        color=TAIL,
        linewidth=1,
    )
    axis.set(title="requests due but not finished", xlabel="s", ylim=(0, None))


def _share(axis: Axes, title: str, figures: Sequence[float | None], slo_s: float | None) -> None:
    ordered = sorted(figure for figure in figures if figure is not None)
    shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
    axis.plot(*_thinned(ordered, shares), color=OURS)
    for share in (0.5, 0.99):
        axis.axhline(share, color=OTHERS, linewidth=0.5)
    if slo_s is not None:
        axis.axvline(slo_s, color=LIMIT, linewidth=1)
    axis.set(
        title=f"{title}: share of requests that took at most this long",
        xlabel="s",
        ylim=(0, 1.02),
        xlim=(0, None),
    )


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the first and last point, and points between them in equal steps."""
    step = max(1, len(xs) // MOST_POINTS)
    places = [*range(0, len(xs), step), *([len(xs) - 1] if xs else [])]
    return [xs[i] for i in places], [ys[i] for i in places]
