"""Requests planned from conversations and recorded traces."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.player import PlannedRequest, PlannedSession
from loadgen.workloads import WORDS, ChatTurn, Conversation, Message
from simulator.traces import Request, Trace

PATH = "/chat/completions"
# A block's text is a range of these words, and a few words that identify it.
POOL_WORDS, OWN_WORDS = 1 << 16, 4


@dataclass(frozen=True)
class RequestForm:
    """The form of requests.

    Every prompt starts with `run_id`, so that caches have nothing of another run. `fields` are set
    in every body; None removes a field.
    """

    model: str
    run_id: str
    answer_tokens: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def body(self, turn: ChatTurn) -> dict[str, Any]:
        first, *others = turn.messages
        messages = [{**first.as_json(), "content": f"{self.run_id} {first.content}"}]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*messages, *(message.as_json() for message in others)],
            "max_tokens": turn.answer_tokens or self.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if turn.tools:
            # the answer is generated beforehand: an engine that may call a tool changes its length
            body |= {"tools": turn.tools, "tool_choice": "none"}
        return {name: value for name, value in {**body, **self.fields}.items() if value is not None}


def of_conversations(talks: Sequence[Conversation], form: RequestForm) -> list[PlannedSession]:
    return [
        PlannedSession(
            talk.name,
            talk.arrives_at,
            tuple(
                PlannedRequest(PATH, functools.partial(form.body, turn), think_s=turn.think_s)
                for turn in talk.turns
            ),
        )
        for talk in talks
    ]


def of_trace(trace: Trace, form: RequestForm, scale: float = 1.0) -> list[PlannedSession]:
    """Return a session for each request, with one word per token, times `scale`.

    Equal blocks have equal words; text outside of blocks is unique.
    """
    pool = random.Random("pool").choices(WORDS, k=POOL_WORDS)
    block_words = max(1, round((trace.block_tokens or 1) * scale))

    def text(name: str, count: int) -> str:
        rng = random.Random(name)
        begin = rng.randrange(POOL_WORDS)
        words = rng.choices(WORDS, k=min(count, OWN_WORDS))
        while len(words) < count:
            words += pool[begin : begin + count - len(words)]
            begin = 0
        return " ".join(words)

    def body(number: int, request: Request) -> dict[str, Any]:
        count = max(1, round(request.prompt_tokens * scale))
        parts = [text(f"block {block}", block_words) for block in request.blocks]
        if (rest := count - len(parts) * block_words) > 0:
            parts.append(text(f"request {number}", rest))
        message = Message("user", " ".join(parts))
        answer_tokens = max(1, round(request.answer_tokens * scale))
        return form.body(ChatTurn((message,), answer_tokens=answer_tokens))

    return [
        PlannedSession(
            f"{trace.name}-{number:06}",
            request.at,
            (PlannedRequest(PATH, functools.partial(body, number, request)),),
        )
        for number, request in enumerate(trace.requests)
    ]
