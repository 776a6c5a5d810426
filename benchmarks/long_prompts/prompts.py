"""Long chats in English with code: paragraphs of this repository's pages, at random.

document   one message has nearly all of the tokens, the question is about it
turns      a system prompt, then many turns: 200 tokens are asked, 800 answered
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from deployments.prompt import PromptTokens

DOCS = Path(__file__).parents[2] / "docs"
FORMS = ("document", "turns")
SYSTEM, ASKED, ANSWERED = 500, 200, 800
NEXT_ANSWERED, NEXT_ASKED = 400, 100
SHORTEST_CHARS = 80

Messages = list[dict[str, str]]


class Chats:
    """Different chats for each seed."""

    def __init__(self, prompts: PromptTokens, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        texts = [page.read_text() for page in sorted(DOCS.rglob("*.md"))]
        paragraphs = [each for text in texts for each in text.split("\n\n")]
        self._paragraphs = [each for each in paragraphs if len(each) >= SHORTEST_CHARS]
        counted = prompts.token_ids("/v1/completions", {"prompt": self._paragraphs})
        assert counted is not None
        self._tokens = [len(ids) for ids in counted]

    def new(self, form: str, tokens: int) -> Messages:
        """A new chat of about `tokens` tokens."""
        chat = [message("system", self._text(min(SYSTEM, tokens // 5)))]
        left = tokens - min(SYSTEM, tokens // 5)
        while form == "turns" and left > ASKED + ANSWERED:
            chat.append(message("user", self._text(ASKED)))
            chat.append(message("assistant", self._text(ANSWERED)))
            left -= ASKED + ANSWERED
        return [*chat, message("user", self._text(left))]

    def next_turn(self, chat: Sequence[dict[str, str]]) -> Messages:
        """The chat with an answer and another question."""
        answer, question = self._text(NEXT_ANSWERED), self._text(NEXT_ASKED)
        return [*chat, message("assistant", answer), message("user", question)]

    def _text(self, tokens: int) -> str:
        chosen = []
        while tokens > 0:
            number = self._rng.randrange(len(self._paragraphs))
            text, length = self._paragraphs[number], self._tokens[number]
            chosen.append(text if length <= tokens else text[: len(text) * tokens // length])
            tokens -= length
        return f"{self._rng.random()}\n\n" + "\n\n".join(chosen)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def body(model: str, messages: Messages) -> bytes:
    """A request for a stream."""
    fields = {"model": model, "messages": messages, "max_tokens": 64, "stream": True}
    return json.dumps(fields).encode()
