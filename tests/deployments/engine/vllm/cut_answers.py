"""Answers of a real engine as its gateway reads them, to be cut and gone on with."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from deployments.wire.answer_log import AnswerLog
from deployments.wire.headers import RESUMABLE_HEADER, RESUME_FIELD
from deployments.wire.resumable import tokens_comment

MODEL = "small"
Body = dict[str, Any]
_CREATED = re.compile(r'"created(?:_at)?": ?(\d+)')


@dataclass
class Answer:
    """The received parts, in order: `("tokens", choice, ids)` and `("event", text)`."""

    came: list[tuple[Any, ...]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def events(self) -> list[str]:
        return [one[1] for one in self.came if one[0] == "event"]

    @property
    def chunks(self) -> list[tuple[int, list[int]]]:
        return [(one[1], one[2]) for one in self.came if one[0] == "tokens"]

    @property
    def token_ids(self) -> dict[int, list[int]]:
        ids = defaultdict[int, list[int]](list)
        for choice, tokens in self.chunks:
            ids[choice] += tokens
        return dict(ids)


async def ask(http: aiohttp.ClientSession, path: str, body: Body) -> Answer:
    """Return the answer of an engine that offers to resume it."""
    headers = {
        RESUMABLE_HEADER: "1",
        "x-request-id": "the-request",
        "x-antefix-expected-cached": "0",
    }
    async with http.post(path, json={"model": MODEL} | body, headers=headers) as response:
        said = await response.read()
        assert response.status == 200, said
        assert response.headers[RESUMABLE_HEADER], said
        answer = Answer(headers=dict(response.headers))
    said, in_one_piece, whole = said.partition(b": antefix-answer ")
    for block in said.decode().split("\n\n")[:-1]:
        if block.startswith(": antefix-tokens "):
            choice, ids = block.split()[2:]
            answer.came.append(("tokens", int(choice), [int(token) for token in ids.split(",")]))
        elif not block.startswith(":"):
            answer.came.append(("event", block))
    if in_one_piece:
        length, _, text = whole.partition(b"\n\n")
        assert int(length) == len(text)
        answer.body = json.loads(text)
    return answer


def resume_state(answer: Answer, cut: int, body: Body | None = None) -> Body:
    """What a gateway knows of it after `cut` of its comments and events, and reports of it where
    the request has this body."""
    log = AnswerLog()
    log.begin({name.lower(): value for name, value in answer.headers.items()})
    for kind, *what in answer.came[:cut]:
        if kind == "tokens":
            log.add_tokens(tokens_comment(*what).removesuffix(b"\n\n"))
        else:
            log.add_events([what[0].encode()])
    continued = log.body_to_resume(json.dumps(body or {"model": MODEL}).encode())
    known: Body = json.loads(continued)[RESUME_FIELD]
    # also where no event came: otherwise the two would have been made in different seconds
    created = _CREATED.search(answer.events[0]) if answer.events else None
    return known | {"created": int(created[1]) if created else 0}


def cut_positions(answer: Answer, around: Sequence[int] = ()) -> list[int]:
    """Places in it: behind its first comment and event, in the middle and one on, at its end, and
    behind and in front of the tokens `around`."""
    places = len(answer.came)
    chosen = {1, 2, places // 3, places // 2, places // 2 + 1, places - 2, places - 1}
    for at, one in enumerate(answer.came):
        chosen |= {at, at + 1} if one[0] == "tokens" and {*around} & {*one[2]} else set()
    return sorted(at for at in chosen if 0 < at < places)
