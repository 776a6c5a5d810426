"""What became of one request: gathered on its way, read once at its end; and its trace.

The traces here make no spans: they are those of a gateway that nobody collects spans from
(`observability.tracing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Literal, Self

Fact = str | bool | int | float

# The headers of https://www.w3.org/TR/trace-context/
CONTEXT_HEADERS = ("traceparent", "tracestate")

# The API's code for a request beyond its tenant's budget.
OVER_BUDGET = "rate_limit_exceeded"

# The status of a request whose client left before an answer began, as logs of proxies have it.
CLIENT_LEFT = 499

# Another engine went on with it; was asked to and could not; none took it in time, or it was lost
# as well; none was asked, because the answer was not one that can be gone on with. And: its gateway
# was lost, and this one passes on the rest.
Resumed = Literal["", "continued", "refused", "failed", "impossible", "rejoined"]
# From an engine that was taken away, to another; it ended where it was.
Moved = Literal["", "moved", "stayed"]
# Of one that another engine continued: the same tokens are proved, or not.
ResumeMode = Literal["", "exact", "continued"]
Outcome = Literal["ok", "invalid", "rejected", "deadline", "failed", "cancelled"]
# Its pool: the only one of its model; by the weights of several; where its conversation is.
RoutedBy = Literal["", "only", "weight", "conversation"]
# Its body arrives; its prompt is read and its place decided; it waits for its turn; it waits for
# a replica that takes it; a replica has it, without a token yet; it is answered.
Stage = Literal["upload", "placement", "turn", "reservation", "engine", "answer"]
# Of a tenant's limits.
LimitKind = Literal["requests", "tokens", "concurrent"]


class Leg:
    """One attempt at a request, from `with` to its end. `replica_id`: where it was sent last.

    `headers` tell the engine whose child its own span is.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.replica_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """`error`: how the attempt failed, where its request was not tried again."""

    def continues(self, tokens: int) -> None:
        """It goes on with an answer of so many tokens that another engine began."""

    def failed(self, code: str) -> None:
        """The engine failed before it had answered in full; `code` is the API's."""


class RequestTrace:
    """One request, whose client sent `headers`; this one makes no spans."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        given = headers or {}
        self._context = {name: given[name] for name in CONTEXT_HEADERS if name in given}

    def placed(self, facts: Callable[[], Mapping[str, Fact | None]]) -> None:
        """It is let in: `facts` say where to and why, by their names below `antefix.`."""

    def attempt(self, record: RequestRecord) -> Leg:
        """It is about to be sent to an engine."""
        return Leg(self._context)

    def ended(self, record: RequestRecord) -> None:
        """It has ended, however it went."""


class GatewayTracing:
    """Of one gateway; this one makes no spans."""

    def request(self, headers: Mapping[str, str], since_s: float) -> RequestTrace:
        """A request that came `since_s` seconds ago and is to be placed now."""
        return RequestTrace(headers)

    async def close(self) -> None:
        """Send what is left, as far as the collector takes it now."""


@dataclass
class Phases:
    """Where the time to a request's first token went, in seconds; only `engine_s` is an engine's.

    `upload_s`: its body came, before the request counts as arrived. `read_s`: its prompt was read
    and looked up in the index. `promotion_s`: a warm replica was given traffic for it. `wait_s`: it
    waited for its turn. `retry_s`: attempts that failed. `engine_s`: from its last placement to its
    first token; None before that.
    """

    upload_s: float = 0.0
    read_s: float = 0.0
    promotion_s: float = 0.0
    wait_s: float = 0.0
    retry_s: float = 0.0
    engine_s: float | None = None


@dataclass(frozen=True)
class LimitLeft:
    """One limit of a request's tenant: so many requests or tokens in any minute, or concurrent
    requests, of `model`, or of all together where that is empty. `left`: what the request left of
    it, or found where it was refused; None: not known."""

    model: str
    kind: LimitKind
    limit: int
    left: int | None = None


@dataclass(frozen=True)
class Charge:
    """What a request took of its tenant's budgets before it was placed. `tokens`: the most that it
    may use; `refused`: which kind had no room; `by_share`: of the gateway's own share, for Redis
    was away."""

    tokens: int
    limits: tuple[LimitLeft, ...]
    refused: str | None = None
    by_share: bool = False


@dataclass(eq=False)
class RequestRecord:
    """Facts of one request: never its prompt, nor what was answered.

    Times are seconds. `arrived`, on the event loop's clock, is when its body was complete: until
    then, when its headers came; `pieces_at` is when the pieces of a stream left. `pool` is the one
    that was asked, `served_by` the one that answered: another where the request overflowed.
    `body_bytes`: what the gateway holds of its body. `charge`: None where the tenant has no limits.
    `replica_id` is the replica that it was sent to last; "": none. `explain` returns what was
    decided about it, as an explanation has it; None: nothing was decided yet.
    `outcome` is "cancelled" (the client left) until something else is known; `error` is the API's
    code for what went wrong. `left_at` is when its client left an answer, and `duration_s` lasts
    until then. `resumed`: what came of an answer whose engine or gateway was lost in the middle;
    `moved`: of one that could go on elsewhere, and whose engine was taken away; "" for all others.
    `resume_mode`: another engine continued it, with tokens that are proved to be the same, or not.
    """

    request_id: str
    tenant: str
    path: str
    arrived: float
    model: str = ""
    pool: str = ""
    routed_by: RoutedBy = ""
    served_by: str = ""
    priority: str = "interactive"
    verdict: str = ""
    replica_id: str = ""
    body_bytes: int = 0
    charge: Charge | None = None
    ttft_s: float | None = None
    left_at: float | None = None
    duration_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    pieces_at: list[float] = field(default_factory=list)
    status: int = 0
    outcome: Outcome = "cancelled"
    error: str = ""
    resumed: Resumed = ""
    moved: Moved = ""
    resume_mode: ResumeMode = ""
    phases: Phases = field(default_factory=Phases)
    trace: RequestTrace = field(default_factory=RequestTrace)
    is_uploaded: bool = False
    explain: Callable[[], Mapping[str, Any]] | None = None

    @property
    def stage(self) -> Stage:
        """How far it has come."""
        if self.ttft_s is not None:
            return "answer"
        if self.replica_id:
            return "engine"
        if self.verdict == "wait" and not self.phases.wait_s:
            return "turn"
        if self.verdict in ("admit", "wait", "overflow"):
            return "reservation"
        return "placement" if self.is_uploaded else "upload"

    @property
    def connected(self) -> float:
        """When its headers came."""
        return self.arrived - self.phases.upload_s

    def complete(self, now: float) -> None:
        """Its body is here: how long that took is the client's time, and promised to nobody."""
        self.phases.upload_s, self.arrived, self.is_uploaded = now - self.arrived, now, True

    @property
    def gaps_s(self) -> list[float]:
        """Between the pieces of a stream."""
        return [later - earlier for earlier, later in pairwise(self.pieces_at)]

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two."""
        if self.ttft_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return max(0.0, self.duration_s - self.ttft_s) / (self.output_tokens - 1)

    def failed(self, status: int, code: str) -> None:
        """It was answered with an error, or broken off by one."""
        self.error, self.outcome = code, _outcome(status, code)
        self.status = self.status or status


def _outcome(status: int, code: str) -> Outcome:
    if code == OVER_BUDGET:  # the fleet could have served it: no promise is missed
        return "invalid"
    if status == 429:
        return "rejected"
    if status == 504:
        return "deadline"
    return "failed" if status >= 500 else "invalid"
