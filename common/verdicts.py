"""The words for a decision about a request, which the whole product uses.

Explanations, `x-antefix-admission`, logs, traces, metrics and the web UI have the same ones:

    admitted     a replica of its pool serves it
    queued       it waits for its turn
    overflowed   a replica of the overflow pool serves it
    rejected     no replica serves it, and its client gets an error
"""

from __future__ import annotations

from typing import Literal, get_args

VerdictKind = Literal["admitted", "queued", "overflowed", "rejected"]
VERDICTS: tuple[VerdictKind, ...] = get_args(VerdictKind)
