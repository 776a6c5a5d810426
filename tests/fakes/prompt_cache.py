"""What a fake engine has cached, by the salt that it gets, as vLLM does."""

from __future__ import annotations

from typing import Any

from tests.fakes.front import Front
from tests.fakes.publishing import BLOCK_TOKENS


class PromptCache:
    """A prefix cache as vLLM's, which reports to the index what it stores."""

    def __init__(self, front: Front, replica_id: str) -> None:
        self._published = front.published[replica_id]
        self._held: list[tuple[str | None, list[int]]] = []

    def __call__(self, fields: dict[str, Any]) -> tuple[int, int]:
        salt, prompt = fields.get("cache_salt"), fields["prompt"]
        held = max((_common(prompt, of) for its, of in self._held if its == salt), default=0)
        if held < len(prompt):
            self._held.append((salt, prompt))
            self._published.stored(prompt, salt)
        return len(prompt), _whole_blocks(min(held, len(prompt) - 1))


def _whole_blocks(tokens: int) -> int:
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
