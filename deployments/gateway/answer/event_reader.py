"""Reads an engine's answer into its log, so that another engine can resume it.

The client gets whole events only. So its progress is a number of events, without a part that a lost
engine left unfinished. Replicas report tokens in comments (`deployments.wire.headers`): their ids
if another engine can resume the answer, otherwise their number. The reader logs and removes these
comments. It keeps an engine's error (`engine_errors`) from the client.
"""

from __future__ import annotations

import re

from deployments.gateway.attempt.engine_errors import EngineError, error_in
from deployments.wire.answer_log import END, AnswerLog, Blocks
from deployments.wire.headers import ANSWER_COMMENT, OUTPUT_TOKENS_COMMENT

_OUTPUT_TOKENS = re.compile(re.escape(OUTPUT_TOKENS_COMMENT) + rb"(\d{1,19})(?: (\w{1,40}))?")
_ANSWER = re.compile(re.escape(ANSWER_COMMENT) + rb"(\d{1,19})(?: (\d{3}))?")


class EventReader:
    """Reads one engine's stream. `error`: the error with which it ended; None: without one."""

    def __init__(self, log: AnswerLog) -> None:
        self._log = log
        self._blocks = Blocks()
        self.error: EngineError | None = None

    def passed_on(self, piece: bytes) -> bytes:
        """Return the events that the client gets after this piece."""
        blocks = []
        for block in self._blocks.whole(piece):
            if block[:1] == b":":
                if self._read_comment(block):
                    continue
            elif error := error_in(block):
                self.error, self._blocks.rest = error, b""
                break
            blocks.append(block)
        if not blocks:
            return b""
        self._log.add_events(blocks)
        blocks.append(b"")
        return END.join(blocks)

    def rest(self) -> bytes:
        """Return the bytes after the last whole event, once the stream has ended."""
        return self._blocks.rest

    def _read_comment(self, comment: bytes) -> bool:
        """Return whether it is a replica's comment, which is logged and not forwarded."""
        if self._log.add_tokens(comment):
            return True
        if found := _OUTPUT_TOKENS.fullmatch(comment):
            self._log.set_count(int(found[1]))
            self._log.finish_reason = (found[2] or b"").decode()
        return found is not None


class ProgressReader:
    """Reads one engine's answer in one piece: its tokens as they are generated, then its body."""

    def __init__(self, log: AnswerLog) -> None:
        self._log = log
        self._unread = bytearray()
        self._status, self._length = 0, -1

    def take(self, piece: bytes) -> None:
        self._unread += piece
        while self._length < 0 and (end := self._unread.find(END)) >= 0:
            block = bytes(self._unread[:end])
            del self._unread[: end + len(END)]
            if found := _ANSWER.fullmatch(block):
                self._length, self._status = int(found[1]), int(found[2] or 200)
            elif found := _OUTPUT_TOKENS.fullmatch(block):
                self._log.finish_reason = (found[2] or b"").decode()
            else:
                self._log.add_tokens(block)

    def answer(self) -> tuple[int, bytes] | None:
        """Return the status and the body; None while the answer is incomplete."""
        return (self._status, bytes(self._unread)) if len(self._unread) == self._length else None
