"""The interface of one try of a request.

Most tries are placed on an engine (`engine_attempt`). A client that resumes a stream instead reads
one that a replica already generates (`answer.resuming`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Protocol

import aiohttp

from deployments.gateway.attempt.moves import Offer
from deployments.gateway.attempt.transport import Reservation, SendRequest
from deployments.gateway.intake.request import EngineRequest
from observability.request_record import Fact

# Why an engine continues an answer: the previous engine was lost, or is leaving.
ContinueReason = Literal["resumed", "moved"]


class AnyAttempt(Protocol):
    """The engine gets `request`, as `body` at `path`. `ticket` names this try on its replica.
    `had_events`: the number of the answer's events that the client has from another gateway."""

    request: EngineRequest
    ticket: str
    had_events: int

    @property
    def body(self) -> bytes: ...
    @property
    def path(self) -> str: ...
    @property
    def expected_cached(self) -> int: ...

    def exchange(
        self, send: SendRequest
    ) -> AbstractAsyncContextManager[tuple[Reservation, aiohttp.ClientResponse]]:
        """Send the request to a replica. Yields the place there and the answer."""
        ...

    def facts(self) -> Mapping[str, Fact | None]:
        """Return the placement and its reasons, for the trace."""
        ...

    def while_waiting(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        """Before the first token, call `offer` while the replica is leaving, to begin elsewhere."""
        ...

    def while_answered(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        """After the first token, call `offer` while the replica is leaving, to move the answer."""
        ...

    def answered(
        self, reservation: Reservation, engine_headers: Mapping[str, str], first_token_at: float
    ) -> Mapping[str, str]:
        """Record the first token, in loop time. Return headers for the client."""
        ...

    def continued(
        self,
        reservation: Reservation,
        engine_headers: Mapping[str, str],
        reason: ContinueReason,
        facts: Mapping[str, Any],
    ) -> None:
        """Record that this engine continues another's answer. `facts` are for the explanation."""
        ...

    def again(self, failed: frozenset[str], tokens: int | None = None) -> AnyAttempt:
        """Return the next try, on a replica that is not in `failed`.

        It continues an answer of `tokens` tokens; None: it begins the answer again. Raises ApiError
        when no try is left.
        """
        ...

    def moved(
        self, avoid: frozenset[str], tokens: int | None, within_s: float
    ) -> AnyAttempt | None:
        """Return a try on another engine while this one continues; None: no engine is predicted to
        produce a token within `within_s` seconds."""
        ...

    async def elsewhere(self) -> AnyAttempt:
        """Schedule the request again, because no replica is up. Raises ApiError."""
        ...

    def is_leaving(self, replica_id: str) -> bool:
        """Return whether this replica reports that it is leaving."""
        ...

    def ended(self) -> None:
        """Record that the try is over, with or without success."""
        ...
