"""Logs an answer's tokens and events, so that another engine can resume it.

A stream consists of blocks, which end with an empty line. Blocks that begin with a colon are
comments; all others are events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
An answer whose token ids are unknown or exceed MOST_TOKEN_BYTES cannot be resumed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from deployments.wire.confirmation import count_in
from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    RESUMABLE_HEADER,
    RESUME_FIELD,
    TOKENS_COMMENT,
)
from deployments.wire.inference_paths import INFERENCE_PATHS

END = b"\n\n"
# Limit for one answer's token ids, which are stored as reported: about nine bytes per token.
MOST_TOKEN_BYTES = 4 * 2**20

_DONE = tuple({path.last_event for path in INFERENCE_PATHS.values() if path.generates})
# The characters of choices and token ids.
_TOKEN_CHARACTERS = b"0123456789, \n"
_CREATED = re.compile(rb'"created(?:_at)?": ?(\d{1,15})')
_LOGPROBS = re.compile(rb'"logprobs": ?\{')


def is_event(block: bytes) -> bool:
    return block[:1] != b":"


class Blocks:
    """Cuts a stream, whose bytes arrive in pieces, into its blocks."""

    def __init__(self) -> None:
        self.rest = b""

    def whole(self, piece: bytes) -> list[bytes]:
        """Return the blocks that end in this piece, without their empty lines."""
        blocks = (self.rest + piece).split(END)
        self.rest = blocks.pop()
        return blocks


class FirstEvents:
    """Drops a stream's first events, which its client has; `missing` are left to drop."""

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self._blocks = Blocks()

    def dropped_from(self, piece: bytes) -> bytes:
        """Return what follows these events in the next bytes of the stream. Comments before them
        are dropped, too. Later bytes do not wait for the end of their block."""
        if not self.missing:
            return piece
        blocks = self._blocks.whole(piece)
        while self.missing and blocks:
            self.missing -= is_event(blocks.pop(0))
        if self.missing:
            return b""
        rest, self._blocks.rest = self._blocks.rest, b""
        return END.join([*blocks, rest])


class AnswerLog:
    """The tokens of one answer, from one or several engines, and its number of `events`.

    Another engine `can_resume` the answer if its first engine offered that and all tokens are
    known.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the answer, because it begins again."""
        self.events = 0
        self._first_event = b""
        self._last_event = b""
        self._made_by = ""
        self._cached_tokens = 0
        self._tokens = bytearray()
        self._is_whole = True
        self._token_ids = 0
        # bytes and number of token ids: at the client's last event, and sent to resume
        self._seen = self._sent = (0, 0)
        self._token_count: int | None = None
        self.finish_reason = ""

    def begin(self, headers: Mapping[str, str]) -> None:
        """Record the headers of the engine that begins the answer."""
        self._made_by = headers.get(RESUMABLE_HEADER, "")
        self._cached_tokens = count_in(headers, CACHED_TOKENS_HEADER) or 0

    @property
    def can_resume(self) -> bool:
        return bool(self._made_by) and self._is_whole

    @property
    def is_complete(self) -> bool:
        """Return whether the client has the last event."""
        return self._last_event.startswith(_DONE)

    @property
    def output_tokens(self) -> int | None:
        """The number of tokens from which another engine can resume; None: it cannot."""
        return self._token_ids if self.can_resume else None

    @property
    def counted_tokens(self) -> int | None:
        """The output tokens of all engines together, as they reported them; None: no engine did,
        and the client has no event.

        Engines of older releases report none: then each event counts as a token.
        """
        if self.can_resume or self._token_count is not None:
            return self.reported_tokens
        return self._token_ids or self.events or None

    @property
    def reported_tokens(self) -> int:
        """The output tokens that engines reported; 0: none did."""
        # an engine that resumes counts only its own tokens; the logged ids include the others
        return max(self._token_ids, self._token_count or 0)

    @property
    def next_number(self) -> int:
        """The `sequence_number` of a response's next event."""
        try:
            data = json.loads(self._last_event.partition(b"data: ")[2])
            return int(data["sequence_number"]) + 1
        except (ValueError, KeyError, TypeError):
            return self.events

    def set_count(self, output_tokens: int) -> None:
        """Record the number of tokens that the engine has generated."""
        self._token_count = output_tokens

    def add_tokens(self, comment: bytes) -> bool:
        """Log the token ids in a comment. Return whether it reports any."""
        if not comment.startswith(TOKENS_COMMENT):
            return False
        self._token_ids += comment.count(b",") + 1
        ids = comment[len(TOKENS_COMMENT) :]
        is_readable = not ids.translate(None, _TOKEN_CHARACTERS)
        if self._is_whole and is_readable and len(self._tokens) < MOST_TOKEN_BYTES:
            self._tokens += ids
            self._tokens += b"\n"
        else:
            self._is_whole = False
            self._tokens.clear()
        return True

    def resumes(self) -> None:
        """Record that the next engine resumes. Drop tokens that it did not get."""
        sent, self._token_ids = self._sent
        del self._tokens[sent:]

    @property
    def _has_none_but_a_role(self) -> bool:
        """Whether the client has only the event with which a chat begins, which has no token."""
        return self.events == 1 and not _LOGPROBS.search(self._first_event)

    def add_events(self, blocks: list[bytes]) -> None:
        """Log blocks that the client gets now."""
        if events := [block for block in blocks if block[:1] != b":"]:
            if not self.events:
                self._first_event = events[0]
            self.events += len(events)
            self._last_event = events[-1]
            self._seen = len(self._tokens), self._token_ids

    def body_to_resume(self, body: bytes) -> bytes:
        """Return the request's body for an engine that resumes the answer. One must be able to.

        Only the engine that generated a token knows its logprobs. So if the client wants logprobs,
        tokens whose event it does not have are generated again.
        """
        assert self.can_resume
        self._sent = len(self._tokens), self._token_ids
        if b'"logprobs"' in body:  # a false match in the prompt only repeats a token or two
            self._sent = (0, 0) if self._has_none_but_a_role else self._seen
        tokens = bytes(self._tokens[: self._sent[0]]).removesuffix(b"\n")
        # in bulk and unparsed, because an answer may have 100,000 tokens
        chunks = tokens.replace(b" ", b",[").replace(b"\n", b"]],[")
        created = _CREATED.search(self._first_event)
        field = b'{"chunks":[%b],"events":%d,"cached_tokens":%d,"created":%d,"made_by":%b}' % (
            b"[%b]]" % chunks if chunks else b"",
            self.events,
            self._cached_tokens,
            int(created[1]) if created else 0,
            json.dumps(self._made_by).encode(),
        )
        fields = memoryview(body)[: body.rindex(b"}")]
        return b"".join((fields, b',"%b":%b}' % (RESUME_FIELD.encode(), field)))
