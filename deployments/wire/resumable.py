"""An answer that another engine can resume, in the replica.

The engine reports each chunk of output tokens (`ResumableExchange.chunk`), and the replica's server
writes it into the answer. A request to resume carries the gateway's part of the answer (`Known`).
The engine replays that part, and the server drops the events that the client has.
`deployments.wire.headers` describes the headers, the comments and the field in the body. Answers
that cannot be resumed raise NotResumable.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from deployments.wire.answer_log import FirstEvents
from deployments.wire.headers import (
    CONTINUED,
    RESUMABLE_HEADER,
    RESUME_FIELD,
    RESUME_MODE_HEADER,
    TOKENS_COMMENT,
)


class NotResumable(Exception):
    """The engine cannot resume this answer. The message is a sentence with the reason."""


@dataclass(frozen=True)
class Known:
    """The part of an answer that a gateway has from another engine.

    `chunks`: choices and their token ids, divided as the engine reported them, because parsers of
    tools and reasoning may make other events of other pieces. The client has `events` of them.
    `cached_tokens`: the prompt tokens that were cached. `created`: the answer's time in Unix
    seconds; 0 if the client has no event. `made_by`: the engine's id, and behind a `-` the seed of
    the ids in this answer; empty if unknown.
    """

    chunks: tuple[tuple[int, tuple[int, ...]], ...]
    events: int
    cached_tokens: int
    created: int
    made_by: str = ""

    @property
    def engine(self) -> str:
        """The id of the engine that began the answer, from `ResumableExchange.set_engine`."""
        return self.made_by.partition("-")[0]

    def token_ids(self, choice: int) -> list[int]:
        """Return all token ids of one choice."""
        return [token for index, ids in self.chunks if index == choice for token in ids]


def extract_known(body: bytes) -> tuple[bytes, Known | None]:
    """Return a request's body without the field that only gateways send, and the field's content.

    Raises NotResumable: when the field does not have this release's form.
    """
    if RESUME_FIELD.encode() not in body:
        return body, None
    try:
        request = json.loads(body)
        field = request.pop(RESUME_FIELD, None)
    except (ValueError, AttributeError, RecursionError):
        return body, None  # the engine's own check reports the error
    if field is None:
        return body, None
    try:
        chunks = tuple((_count(index), tuple(map(_count, ids))) for index, ids in field["chunks"])
        known = Known(
            chunks,
            events=_count(field["events"]),
            cached_tokens=_count(field["cached_tokens"]),
            created=_count(field["created"]),
            made_by=str(field.get("made_by") or ""),
        )
        return json.dumps(request).encode(), known
    except (KeyError, TypeError, ValueError):
        raise NotResumable(
            f"The engine does not understand {RESUME_FIELD!r}: the gateway has another release."
        ) from None


class ResumableExchange:
    """One exchange at `path` whose gateway requested an answer that can be resumed.

    - `known`: the part of the answer from another engine. While `replaying`, the engine yields that
      part, and `first_events` drops the events that the client has.
    - `prompts`: how many the engine has begun. `offered`: another engine could resume the answer.
    - `made_by` differs between engines whose answers may differ. `exact`: engines of one `made_by`
      are proved to generate the same tokens.
    - `in_one_piece`: the answer is not a stream.
    - `exact_events`: an event contains more than its token determines, so every event of the replay
      must be one that the client has.
    - `failed`: the engine failed with this answer. `lost`: because it is lost, with all answers.
      `refused`: the reason why the answer cannot be resumed.
    """

    def __init__(self, known: Known | None, path: str = "") -> None:
        self.known = known
        self.path = path
        self.prompts = 0
        self.offered = False
        self.made_by = "1"
        self.exact = True
        self.in_one_piece = False
        self.exact_events = False
        self.replaying = known is not None
        self.replayed = False
        self.first_events = FirstEvents(known.events if known else 0)
        self.failed = self.lost = False
        self.refused: str | None = None
        self.on_chunk: Callable[[], None] = lambda: None
        self._chunks: list[bytes] = []
        seed = known.made_by.partition("-")[2] if known else ""
        self._seed = seed or secrets.token_hex(8)
        self._ids = 0

    def set_engine(self, engine: str) -> None:
        """Set `made_by` from the id of the engine and the seed of this answer's ids."""
        self.made_by = f"{engine}-{self._seed}"

    def next_id(self) -> str:
        """Return 16 random hex digits. A resuming engine gets the same ids in this order."""
        self._ids += 1
        return blake2b(f"{self._seed} {self._ids}".encode(), digest_size=8).hexdigest()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of an answer that was `offered`."""
        found = [(RESUMABLE_HEADER.encode(), self.made_by.encode())]
        if not self.exact:
            found.append((RESUME_MODE_HEADER.encode(), CONTINUED.encode()))
        return found

    @property
    def known_tokens(self) -> int:
        return sum(len(ids) for _, ids in self.known.chunks) if self.known else 0

    @property
    def reports_progress(self) -> bool:
        """Whether tokens of an answer in one piece are reported before the engine yields it."""
        return self.offered and self.in_one_piece

    def refuse(self, reason: str) -> NotResumable:
        """Return the exception to raise. The replica sends this reason, not the engine's error."""
        self.refused = self.refused or reason
        return NotResumable(reason)

    def chunk(self, choice: int, token_ids: Sequence[int]) -> None:
        """Report new tokens of a choice."""
        if token_ids and self.offered:
            self._chunks.append(tokens_comment(choice, token_ids))
            self.on_chunk()

    def comments(self) -> bytes:
        """Return the comments for the chunks since the last call."""
        comments, self._chunks = b"".join(self._chunks), []
        return comments


def tokens_comment(choice: int, token_ids: Iterable[int]) -> bytes:
    ids = ",".join(map(str, token_ids))
    return TOKENS_COMMENT + f"{choice} {ids}\n\n".encode()


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


# The exchange that the current task serves; None if no gateway requested it.
current: ContextVar[ResumableExchange | None] = ContextVar("resumable", default=None)
