"""What tests of admission ask of a gateway before fake engines, and read in its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import aiohttp
import msgspec

from tests.fakes.front import Front
from tests.sentences import assert_sentences

# Fake engines say that they compute 1000 tokens a second: a queue of 1000 is one second.
SLO = {"interactive": {"ttft_s": 2.0}, "batch": {"ttft_s": 60.0}}
BATCH = {"x-antefix-priority": "batch"}
# BUSY meets the SLO of a pool whose predictions have not been judged yet.
FULL, BUSY, FREE = 9000, 1200, 0


@contextmanager
def recorded_explanations(front: Front) -> Iterator[list[dict[str, Any]]]:
    """The explanations that are kept meanwhile; Redis, which would hold them, is not there."""
    kept: list[dict[str, Any]] = []

    def keep(tenant: str, request_id: str, explanation: Mapping[str, Any]) -> None:
        kept.append(msgspec.json.decode(msgspec.json.encode(explanation)))

    with patch.object(front.gateway.parts.explanations, "keep", keep):
        yield kept


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    error: dict[str, Any] = (await answer.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert_sentences(error["message"])
    return error


async def served_by(front: Front, headers: dict[str, str] | None = None, **body: Any) -> str:
    """The model in the body of an answer, which its header names too."""
    async with front.post(headers=headers, **body) as answer:
        fields = await answer.json()
        assert answer.status == 200, fields
        assert answer.headers["x-antefix-model"] == fields["model"]
        return str(fields["model"])
