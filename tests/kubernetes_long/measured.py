"""What the long tests measured: a line of JSON each, on stdout and in .cache/kubernetes-long.jsonl.

A goal on time is told, met or not: how fast two cores are is no law. What a test asserts is that
requests are answered and that things come to be at all.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.helm.helm import ROOT

FILE = ROOT / ".cache" / "kubernetes-long.jsonl"


def measured(what: str, value: float, unit: str, at_most: float | None = None) -> None:
    line: dict[str, object] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "what": what,
        "value": round(value, 2),
        "unit": unit,
    }
    if at_most is not None:
        line |= {"goal": at_most, "met": value <= at_most}
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
    print(f"\nmeasured {json.dumps(line)}")
