"""Reads an engine's answer so that another engine can go on with it, should this one be lost.

A stream is passed on in whole events: what a client has of it is then a number of events, and
nothing that a lost engine left half said. Replicas report tokens in comments
(`deployments.wire.headers`): the ids of a resumable answer, and the number of any other. The reader
removes these comments and keeps what they say. An engine's error (`engine_errors`) is no event for
the client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from deployments.gateway.attempt.engine_errors import END as _END
from deployments.gateway.attempt.engine_errors import EngineError, error_in
from deployments.wire.confirmation import count_in
from deployments.wire.headers import (
    ANSWER_COMMENT,
    CACHED_TOKENS_HEADER,
    OUTPUT_TOKENS_COMMENT,
    RESUMABLE_HEADER,
    RESUME_FIELD,
    TAKEN_OVER_COMMENT,
    TOKENS_COMMENT,
)

# Of one answer, kept as they were told: about nine for a token.
MOST_TOKEN_BYTES = 4 * 2**20

_DONE = (b"data: [DONE]", b"event: response.completed")
# All that choices and ids are written with.
_OF_TOKENS = b"0123456789, \n"
_OUTPUT_TOKENS = re.compile(re.escape(OUTPUT_TOKENS_COMMENT) + rb"(\d{1,19})")
_ANSWER = re.compile(re.escape(ANSWER_COMMENT) + rb"(\d{1,19})(?: (\d{3}))?")
_CREATED = re.compile(rb'"created(?:_at)?": ?(\d{1,15})')


class AnswerSoFar:
    """What is known of one answer, whichever engines made it; `events` of it its client has, and of
    the next ones `had` as well, from another gateway.

    It `can_go_on` elsewhere when its engine said so and all of its tokens are known.
    """

    def __init__(self, had: int = 0) -> None:
        self.had = had
        self.forget()

    def forget(self) -> None:
        """Of an answer that begins anew."""
        self.events = 0
        self._first_event = b""
        self._last_event = b""
        self._made_by = ""
        self._cached_tokens = 0
        self._tokens = bytearray()
        self._is_whole = True
        self._token_ids = 0
        self._token_count: int | None = None

    def begins(self, headers: Mapping[str, str]) -> None:
        """An engine's answer to the request as the client sent it has these headers."""
        self._made_by = headers.get(RESUMABLE_HEADER, "")
        self._cached_tokens = count_in(headers, CACHED_TOKENS_HEADER) or 0

    @property
    def can_go_on(self) -> bool:
        return bool(self._made_by) and self._is_whole

    @property
    def is_complete(self) -> bool:
        """Its client has its last event."""
        return self._last_event.startswith(_DONE)

    @property
    def output_tokens(self) -> int | None:
        """Those that another engine can go on with; None: it cannot."""
        return self._token_ids if self.can_go_on else None

    @property
    def counted_tokens(self) -> int | None:
        """Output tokens of all its engines together, as far as they reported them; None: no engine
        did, and the client has no event.

        An engine of an older release reports none: each event then counts as one.
        """
        # an engine that continues an answer counts its own tokens only, and reports all ids
        if self.can_go_on or self._token_count is not None:
            return max(self._token_ids, self._token_count or 0)
        return self._token_ids or self.events or None

    @property
    def next_number(self) -> int:
        """The `sequence_number` of a response's next event."""
        try:
            data = json.loads(self._last_event.partition(b"data: ")[2])
            return int(data["sequence_number"]) + 1
        except (ValueError, KeyError, TypeError):
            return self.events

    def counted(self, output_tokens: int) -> None:
        """The engine has made so many tokens of the answer."""
        self._token_count = output_tokens

    def told(self, comment: bytes) -> bool:
        """Whether it is a comment that reports token ids, which are kept then."""
        if not comment.startswith(TOKENS_COMMENT):
            return False
        self._token_ids += comment.count(b",") + 1
        if self._is_whole and len(self._tokens) < MOST_TOKEN_BYTES:
            self._tokens += comment[len(TOKENS_COMMENT) :]
            self._tokens += b"\n"
        else:
            self._is_whole = False
            self._tokens.clear()
        return True

    def gave(self, events: list[bytes]) -> None:
        """Its client gets these now; at least one."""
        if not self.events:
            self._first_event = events[0]
        self.events += len(events)
        self._last_event = events[-1]

    def going_on(self, body: bytes) -> bytes | None:
        """The request's body for the engine that is to go on; None where it cannot be asked to."""
        tokens = bytes(self._tokens).removesuffix(b"\n")
        if not self.can_go_on or tokens.translate(None, _OF_TOKENS):
            return None
        # all at once, and read by the engine: an answer may have a hundred thousand
        chunks = tokens.replace(b" ", b",[").replace(b"\n", b"]],[")
        created = _CREATED.search(self._first_event)
        field = b'{"chunks":[%b],"events":%d,"cached_tokens":%d,"created":%d,"made_by":%b}' % (
            b"[%b]]" % chunks if chunks else b"",
            self.events,
            self._cached_tokens,
            int(created[1]) if created else 0,
            json.dumps(self._made_by).encode(),
        )
        own = memoryview(body)[: body.rindex(b"}")]
        return b"".join((own, b',"%b":%b}' % (RESUME_FIELD.encode(), field)))


class EventReader:
    """Reads one engine's stream. `error`, `is_taken_over`: what it said at its end, if it did."""

    def __init__(self, so_far: AnswerSoFar) -> None:
        self._so_far = so_far
        self._held = b""
        self.is_taken_over = False
        self.error: EngineError | None = None

    def passed_on(self, piece: bytes) -> bytes:
        """The events that the client gets now."""
        blocks = (self._held + piece).split(_END)
        self._held = blocks.pop()
        events, own = [], 0
        for block in blocks:
            if block[:1] == b":":
                if self._is_ours(block):
                    continue
                own += 1
            elif error := error_in(block):
                self.error, self._held = error, b""
                break
            events.append(block)
        if not events:
            return b""
        if len(events) > own:
            self._so_far.gave([e for e in events if e[:1] != b":"] if own else events)
        if self._so_far.had and not (events := self._not_had(events)):
            return b""
        events.append(b"")
        return _END.join(events)

    def _not_had(self, events: list[bytes]) -> list[bytes]:
        for place, event in enumerate(events):
            if not self._so_far.had:
                return events[place:]
            self._so_far.had -= event[:1] != b":"
        return []

    def rest(self) -> bytes:
        """What else is the client's, once the stream has ended as it should."""
        return self._held

    def _is_ours(self, comment: bytes) -> bool:
        if self._so_far.told(comment):
            return True
        if found := _OUTPUT_TOKENS.fullmatch(comment):
            self._so_far.counted(int(found[1]))
        self.is_taken_over = self.is_taken_over or comment == TAKEN_OVER_COMMENT
        return found is not None or self.is_taken_over


class ProgressReader:
    """Of one engine's answer that is no stream: its tokens as they are made, and then all of it."""

    def __init__(self, so_far: AnswerSoFar) -> None:
        self._so_far = so_far
        self._held = bytearray()
        self._status, self._length = 0, -1

    def take(self, piece: bytes) -> None:
        self._held += piece
        while self._length < 0 and (end := self._held.find(_END)) >= 0:
            block = bytes(self._held[:end])
            del self._held[: end + len(_END)]
            if found := _ANSWER.fullmatch(block):
                self._length, self._status = int(found[1]), int(found[2] or 200)
            else:
                self._so_far.told(block)

    def answer(self) -> tuple[int, bytes] | None:
        """Its status and its body; None while it is not all here."""
        return (self._status, bytes(self._held)) if len(self._held) == self._length else None
