"""Reads an engine's answer into its log, so that another engine can continue it.

A stream is passed on in whole events: what a client has of it is then a number of events, and
nothing that a lost engine left unfinished. Replicas report tokens in comments
(`deployments.wire.headers`): the ids of an answer that another engine can continue, and the number
of any other. The reader removes these comments and logs what they say. An engine's error
(`engine_errors`) is no event for the client.
"""

from __future__ import annotations

import re

from deployments.gateway.attempt.engine_errors import EngineError, error_in
from deployments.wire.answer_log import END, AnswerLog, Blocks
from deployments.wire.headers import ANSWER_COMMENT, OUTPUT_TOKENS_COMMENT, TAKEN_OVER_COMMENT

_OUTPUT_TOKENS = re.compile(re.escape(OUTPUT_TOKENS_COMMENT) + rb"(\d{1,19})(?: (\w{1,40}))?")
_ANSWER = re.compile(re.escape(ANSWER_COMMENT) + rb"(\d{1,19})(?: (\d{3}))?")


class EventReader:
    """Reads one engine's stream. `error`, `is_taken_over`: what it reported at its end."""

    def __init__(self, log: AnswerLog) -> None:
        self._log = log
        self._blocks = Blocks()
        self.is_taken_over = False
        self.error: EngineError | None = None

    def passed_on(self, piece: bytes) -> bytes:
        """The events that the client gets now."""
        blocks = []
        for block in self._blocks.whole(piece):
            if block[:1] == b":":
                if self._is_ours(block):
                    continue
            elif error := error_in(block):
                self.error, self._blocks.rest = error, b""
                break
            blocks.append(block)
        if not blocks or not (blocks := self._log.add_events(blocks)):
            return b""
        blocks.append(b"")
        return END.join(blocks)

    def rest(self) -> bytes:
        """What else is the client's, once the stream has ended as it should."""
        return self._blocks.rest

    def _is_ours(self, comment: bytes) -> bool:
        if self._log.add_tokens(comment):
            return True
        if found := _OUTPUT_TOKENS.fullmatch(comment):
            self._log.set_count(int(found[1]))
            self._log.finish_reason = (found[2] or b"").decode()
        self.is_taken_over = self.is_taken_over or comment == TAKEN_OVER_COMMENT
        return found is not None or self.is_taken_over


class ProgressReader:
    """Of one engine's answer that is no stream: its tokens as they are made, and then all of it."""

    def __init__(self, log: AnswerLog) -> None:
        self._log = log
        self._held = bytearray()
        self._status, self._length = 0, -1

    def take(self, piece: bytes) -> None:
        self._held += piece
        while self._length < 0 and (end := self._held.find(END)) >= 0:
            block = bytes(self._held[:end])
            del self._held[: end + len(END)]
            if found := _ANSWER.fullmatch(block):
                self._length, self._status = int(found[1]), int(found[2] or 200)
            elif found := _OUTPUT_TOKENS.fullmatch(block):
                self._log.finish_reason = (found[2] or b"").decode()
            else:
                self._log.add_tokens(block)

    def answer(self) -> tuple[int, bytes] | None:
        """Its status and its body; None while it is not all here."""
        return (self._status, bytes(self._held)) if len(self._held) == self._length else None
