"""What the tries of a request have in common: most are placed on an engine (`engine_attempt`), one
reads a stream on that a replica makes already (`answer.rejoining`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Protocol

import aiohttp

from deployments.gateway.attempt.moves import Offer
from deployments.gateway.attempt.transport import Reservation, Route, SendRequest
from deployments.gateway.intake.request import EngineRequest
from observability.request_record import Fact

# Why an engine continues an answer: the one before was lost, or is leaving.
WentOn = Literal["resumed", "moved"]


class Exchanges(Protocol):
    """A way to engines: `Transport` is one."""

    def exchange(
        self, send: SendRequest, route: Route
    ) -> AbstractAsyncContextManager[tuple[Reservation, aiohttp.ClientResponse]]:
        """Send a request; yields where, and the answer."""
        ...


class AnyAttempt(Protocol):
    """`request` is what the engine gets, as `body` at `path`. `had_events`: how many of the
    answer's the client has from another gateway."""

    request: EngineRequest
    route: Route
    had_events: int

    @property
    def transport(self) -> Exchanges: ...
    @property
    def body(self) -> bytes: ...
    @property
    def path(self) -> str: ...
    @property
    def expected_cached(self) -> int: ...

    def facts(self) -> Mapping[str, Fact | None]:
        """Where it is placed and why, for its trace."""
        ...

    def while_waiting(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        """Until its first token: `offer` has it begin elsewhere where that replica is leaving."""
        ...

    def while_answered(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        """From then on: `offer` has another engine continue where that replica is leaving."""
        ...

    def answered(
        self, reservation: Reservation, engine_headers: Mapping[str, str], first_token_at: float
    ) -> Mapping[str, str]:
        """The first token came, at that time of the loop's clock; headers for the client."""
        ...

    def went_on(
        self,
        reservation: Reservation,
        engine_headers: Mapping[str, str],
        why: WentOn,
        facts: Mapping[str, Any],
    ) -> None:
        """It continues an answer that another engine began; `facts` are for the explanation."""
        ...

    def again(self, failed: frozenset[str], tokens: int | None = None) -> AnyAttempt:
        """The next try, on none of `failed`. `tokens`: of the answer that it continues; None: it
        begins anew. Raises ApiError where there is none."""
        ...

    def moved(
        self, avoid: frozenset[str], tokens: int | None, within_s: float
    ) -> AnyAttempt | None:
        """The next try while this one goes on; None: no engine would have it soon."""
        ...

    async def elsewhere(self) -> AnyAttempt:
        """What is decided anew where no replica is up. Raises ApiError."""
        ...

    def is_leaving(self, replica_id: str) -> bool:
        """Whether that replica reports that it is leaving."""
        ...

    def ended(self) -> None:
        """The try is over, however it went."""
        ...
