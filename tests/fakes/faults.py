"""How a fake engine is slow or faulty, which a test sets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.responses import Response


class GenerationFailed(Exception):
    """The engine ends a request with an error after some tokens."""


@dataclass(eq=False)
class Faults:
    """The faults of one engine; none at first.

    `token_delay_s`: before each token. `pauses_after`: N tokens, until `go_on` is set; 0: before
    any. `dies_after`: N tokens; 0: before it has answered anything. `tells_death_after`: N tokens
    of a stream, as vLLM's server does. `cuts`: after how many bytes of their bodies, as they are
    sent, its next answers are cut. `dies_of`: a field, and a request with it is as far as it gets.
    `fails_after`: N tokens, with the error `fails_with`, an HTTP status; 0: before any.
    `answers`: all that it answers.
    """

    token_delay_s: float = 0.0
    finish_reason: str = "length"
    pauses_after: int | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    dies_after: int | None = None
    tells_death_after: int | None = None
    cuts: list[int] = field(default_factory=list)
    dies_of: str = ""
    fails_after: int | None = None
    fails_with: int = 400
    answers: Response | None = None
