"""An answer that another engine could continue, as its replica sees it.

The engine says of each chunk of output tokens that it is there (`Continuation.chunk`), and the
replica's server writes that into the answer. A request to continue carries what its gateway has of
the answer (`Known`): the engine replays that and the server drops the events that the client has.
Headers, comments and the body's key are told in `deployments.wire.headers`.
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


class NotContinuable(Exception):
    """This answer cannot be gone on with exactly; the message says why, in a sentence."""


@dataclass(frozen=True)
class Known:
    """What a gateway has of an answer that another engine began.

    `chunks`: choice and token ids, in the order they came and as they were told: parsers of tools
    and reasoning may make other events of other pieces. The client has `events` of what they made.
    `cached_tokens` of the prompt were cached, and `created` is the answer's, in Unix seconds; 0
    where the client has none yet. `made_by`: what the engine said of itself, empty where unknown:
    what tells it from others, and behind a `-` what its ids of this answer are made of.
    """

    chunks: tuple[tuple[int, tuple[int, ...]], ...]
    events: int
    cached_tokens: int
    created: int
    made_by: str = ""

    @property
    def engine(self) -> str:
        """Which began it, as `Continuation.is_of` was told."""
        return self.made_by.partition("-")[0]

    def token_ids(self, choice: int) -> list[int]:
        """All of one choice."""
        return [token for index, ids in self.chunks if index == choice for token in ids]


def taken_from(body: bytes) -> tuple[bytes, Known | None]:
    """A request's body without the key that only gateways send, and what it said.

    Raises NotContinuable for what no gateway of this release says.
    """
    if RESUME_FIELD.encode() not in body:
        return body, None
    try:
        request = json.loads(body)
        told = request.pop(RESUME_FIELD, None)
    except (ValueError, AttributeError, RecursionError):
        return body, None  # the engine says what is wrong with it
    if told is None:
        return body, None
    try:
        chunks = tuple((_count(index), tuple(map(_count, ids))) for index, ids in told["chunks"])
        known = Known(
            chunks,
            events=_count(told["events"]),
            cached_tokens=_count(told["cached_tokens"]),
            created=_count(told["created"]),
            made_by=str(told.get("made_by") or ""),
        )
        return json.dumps(request).encode(), known
    except (KeyError, TypeError, ValueError):
        raise NotContinuable(
            f"The engine does not understand {RESUME_FIELD!r}: the gateway is of another release."
        ) from None


class Continuation:
    """One exchange whose gateway asked for an answer that can be gone on with; `path` is the API's.

    `offered` once the engine has said that it can, for one of `prompts`; `made_by` then tells
    engines apart whose answers may differ, and `exact` says whether those of one `made_by` are
    proved to have the same tokens. While `replaying`, what it yields was made of `known`;
    `first_events` are those that the client has. `in_one_piece`: the answer is
    no stream. `exact_events`: what it says of a token is not known from the token alone, so that an
    event made while replaying must be one that the client has. `lost`: the engine is gone.
    `refused` says why not.
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
        self.lost = False
        self.refused: str | None = None
        self.on_chunk: Callable[[], None] = lambda: None
        self._chunks: list[bytes] = []
        self._ids_of = known.made_by.partition("-")[2] if known else ""
        self._ids = 0

    def is_of(self, engine: str) -> None:
        """The engine tells itself from others so, and this answer from its others."""
        self.made_by = f"{engine}-{self._seed}"

    def next_id(self) -> str:
        """16 hex digits: at random, and the same, one after the other, whoever goes on with it."""
        self._ids += 1
        return blake2b(f"{self._seed} {self._ids}".encode(), digest_size=8).hexdigest()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """On an answer that was `offered`."""
        found = [(RESUMABLE_HEADER.encode(), self.made_by.encode())]
        if not self.exact:
            found.append((RESUME_MODE_HEADER.encode(), CONTINUED.encode()))
        return found

    @property
    def _seed(self) -> str:
        self._ids_of = self._ids_of or secrets.token_hex(8)
        return self._ids_of

    @property
    def known_tokens(self) -> int:
        return sum(len(ids) for _, ids in self.known.chunks) if self.known else 0

    @property
    def told_as_it_comes(self) -> bool:
        """An answer in one piece, of which the engine yields nothing before its end."""
        return self.offered and self.in_one_piece

    def refuse(self, reason: str) -> NotContinuable:
        """To be raised: what else the engine says is not sent."""
        self.refused = self.refused or reason
        return NotContinuable(reason)

    def chunk(self, choice: int, token_ids: Sequence[int]) -> None:
        """So many more tokens of a choice, just made."""
        if token_ids and self.offered:
            self._chunks.append(tokens_comment(choice, token_ids))
            self.on_chunk()

    def comments(self) -> bytes:
        """Those of the chunks since the last call."""
        told, self._chunks = b"".join(self._chunks), []
        return told


def tokens_comment(choice: int, token_ids: Iterable[int]) -> bytes:
    ids = ",".join(map(str, token_ids))
    return TOKENS_COMMENT + f"{choice} {ids}\n\n".encode()


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


# Of the exchange that the current task serves; None where no gateway asked.
current: ContextVar[Continuation | None] = ContextVar("continuation", default=None)
