"""Gets the token counts of an answer that failed or was abandoned, from its replica.

An engine may generate many tokens between two events, and the last ones are in no event. The
replica answers once its engine has stopped (`deployments.engine.serving.final_counts`). If it does
not answer within TIMEOUT_S, the counts stay as the stream reported them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import aiohttp

from deployments.wire.answer_log import AnswerLog
from deployments.wire.confirmation import count_in
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    OUTPUT_TOKENS_HEADER,
    PROMPT_TOKENS_HEADER,
    TOKENS_PATH,
)
from observability.traces.request_record import RequestRecord

# An engine stops at once, so only the replica's event loop delays the answer.
TIMEOUT_S = 2.0


class FinalCounts:
    """Gets the counts for one gateway, from all replicas."""

    def __init__(self, session: aiohttp.ClientSession, secret: str) -> None:
        self._session = session
        self._passes = EnginePasses(secret)

    async def take(self, url: str, ticket: str, record: RequestRecord, log: AnswerLog) -> None:
        """Complete `record` and `log` with the counts of the exchange with this ticket."""
        headers = self._passes.headers(url, path=TOKENS_PATH)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.get(
                url + TOKENS_PATH, params={"ticket": ticket}, headers=headers, timeout=timeout
            ) as answer:
                take_counts(record, log, answer.headers)


def take_counts(record: RequestRecord, log: AnswerLog, headers: Mapping[str, str]) -> None:
    """Raise the counts in `record` and `log` to those in an engine's headers, if it has any.

    A stream's first headers count only prompts that had a first token by then.
    """
    prompt_tokens, cached_tokens, output_tokens = (
        count_in(headers, name)
        for name in (PROMPT_TOKENS_HEADER, CACHED_TOKENS_HEADER, OUTPUT_TOKENS_HEADER)
    )
    if output_tokens is not None:
        record.counted(
            max(record.prompt_tokens or 0, prompt_tokens or 0),
            max(record.cached_tokens or 0, cached_tokens or 0),
        )
        log.set_count(max(output_tokens, log.reported_tokens))
