"""The log of an answer: its events and tokens, and how many of them its client has.

A stream is read in blocks, which end with an empty line. Comments begin with a colon; all other
blocks are events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
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
# Of one answer, kept as they were reported: about nine for a token.
MOST_TOKEN_BYTES = 4 * 2**20

_DONE = tuple({path.last_event for path in INFERENCE_PATHS.values() if path.generates})
# All that choices and ids are written with.
_OF_TOKENS = b"0123456789, \n"
_CREATED = re.compile(rb'"created(?:_at)?": ?(\d{1,15})')
_LOGPROBS = re.compile(rb'"logprobs": ?\{')


def is_event(block: bytes) -> bool:
    return block[:1] != b":"


class Blocks:
    """Cuts a stream, whose bytes come in pieces, into its blocks."""

    def __init__(self) -> None:
        self.rest = b""

    def whole(self, piece: bytes) -> list[bytes]:
        """Those that end in this piece, without their ends."""
        blocks = (self.rest + piece).split(END)
        self.rest = blocks.pop()
        return blocks


class EventCounter:
    """How many whole `events` a stream has had, counted as its bytes come."""

    def __init__(self) -> None:
        self.events = 0
        self._open = b""

    def add(self, part: bytes) -> None:
        """The next bytes, cut anywhere; takes time for these alone."""
        *blocks, rest = (self._open + part).split(END)
        self.events += sum(map(is_event, blocks))
        # of the block that has begun, its first and its last byte decide
        self._open = rest if len(rest) <= 2 else rest[:1] + b"." + rest[-1:]


class FirstEvents:
    """The first events of a stream, which its client has: so many are `missing` still."""

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self._blocks = Blocks()

    def dropped_from(self, blocks: list[bytes]) -> list[bytes]:
        """What follows them, without the comments before."""
        if not self.missing:
            return blocks
        for at, block in enumerate(blocks):
            if not self.missing:
                return blocks[at:]
            self.missing -= is_event(block)
        return []

    def dropped_from_bytes(self, piece: bytes) -> bytes:
        """As `dropped_from`, of the next bytes of the stream. Once they are dropped, nothing waits
        for its block's end."""
        if not self.missing:
            return piece
        blocks = self.dropped_from(self._blocks.whole(piece))
        if self.missing:
            return b""
        rest, self._blocks.rest = self._blocks.rest, b""
        return END.join([*blocks, rest])


class AnswerLog:
    """What is known of one answer, whichever engines made it: its tokens, and how many `events` its
    client has. Of the next events the client has `had` so many as well, from another gateway.

    Another engine `can_continue` it when its engine said so and all of its tokens are known.
    """

    def __init__(self, had: int = 0) -> None:
        self._had = FirstEvents(had)
        self.clear()

    def clear(self) -> None:
        """The answer begins anew."""
        self.events = 0
        self._first_event = b""
        self._last_event = b""
        self._made_by = ""
        self._cached_tokens = 0
        self._tokens = bytearray()
        self._is_whole = True
        self._token_ids = 0
        # how many bytes of the tokens, and how many ids, when the client got its last event; and
        # when another engine was asked to continue
        self._seen = self._sent = (0, 0)
        self._token_count: int | None = None
        self.finish_reason = ""

    def begin(self, headers: Mapping[str, str]) -> None:
        """An engine's answer to the request as the client sent it has these headers."""
        self._made_by = headers.get(RESUMABLE_HEADER, "")
        self._cached_tokens = count_in(headers, CACHED_TOKENS_HEADER) or 0

    @property
    def can_continue(self) -> bool:
        return bool(self._made_by) and self._is_whole

    @property
    def is_complete(self) -> bool:
        """Its client has its last event."""
        return self._last_event.startswith(_DONE)

    @property
    def output_tokens(self) -> int | None:
        """Those that another engine can continue from; None: it cannot."""
        return self._token_ids if self.can_continue else None

    @property
    def counted_tokens(self) -> int | None:
        """Output tokens of all its engines together, as far as they reported them; None: no engine
        did, and the client has no event.

        An engine of an older release reports none: each event then counts as one.
        """
        # an engine that continues an answer counts its own tokens only, and reports all ids
        if self.can_continue or self._token_count is not None:
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

    def set_count(self, output_tokens: int) -> None:
        """The engine has made so many tokens of the answer."""
        self._token_count = output_tokens

    def add_tokens(self, comment: bytes) -> bool:
        """Whether it is a comment that reports token ids, which are logged then."""
        if not comment.startswith(TOKENS_COMMENT):
            return False
        self._token_ids += comment.count(b",") + 1
        ids = comment[len(TOKENS_COMMENT) :]
        is_readable = not ids.translate(None, _OF_TOKENS)
        if self._is_whole and is_readable and len(self._tokens) < MOST_TOKEN_BYTES:
            self._tokens += ids
            self._tokens += b"\n"
        else:
            self._is_whole = False
            self._tokens.clear()
        return True

    def continues(self) -> None:
        """The engine that was asked to continue does."""
        sent, self._token_ids = self._sent
        del self._tokens[sent:]

    @property
    def _has_none_but_a_role(self) -> bool:
        """A chat's stream begins with an event of no token."""
        return self.events == 1 and not _LOGPROBS.search(self._first_event)

    def add_events(self, blocks: list[bytes]) -> list[bytes]:
        """The client gets these events and comments now; returns those that it has not had."""
        if events := [block for block in blocks if block[:1] != b":"]:
            if not self.events:
                self._first_event = events[0]
            self.events += len(events)
            self._last_event = events[-1]
            self._seen = len(self._tokens), self._token_ids
        return self._had.dropped_from(blocks) if self._had.missing else blocks

    def body_to_continue(self, body: bytes) -> bytes | None:
        """The request's body for the engine that is to continue; None where none can.

        Only the engine that made a token knows its logprobs: where the client wants some, one whose
        event it has not got is made again.
        """
        if not self.can_continue:
            return None
        self._sent = len(self._tokens), self._token_ids
        if b'"logprobs"' in body:  # a prompt with this word costs a token or two
            self._sent = (0, 0) if self._has_none_but_a_role else self._seen
        tokens = bytes(self._tokens[: self._sent[0]]).removesuffix(b"\n")
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
