"""The record of one request: filled on its way, read once at its end; and its trace.

The traces here create no spans: they belong to a gateway without a collector
(`observability.tracing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Literal, Self

Fact = str | bool | int | float

# The headers of https://www.w3.org/TR/trace-context/
CONTEXT_HEADERS = ("traceparent", "tracestate")

# The API's code for a request over its tenant's budget.
OVER_BUDGET = "rate_limit_exceeded"

# The status of a request whose client left before an answer started, as in proxies' logs.
CLIENT_LEFT = 499

# continued: another engine continued the answer. refused: the engine was asked to, and could not.
# failed: no engine accepted it in time, or that engine was lost as well. impossible: the answer was
# of a kind that cannot be continued. rejoined: its gateway was lost, and this one relays the rest.
Resumed = Literal["", "continued", "refused", "failed", "impossible", "rejoined"]
# Off an engine that was drained: moved to another, or ended where it was.
Moved = Literal["", "moved", "stayed"]
# Whether a continued answer is proved to have the same tokens.
ResumeMode = Literal["", "exact", "continued"]
Outcome = Literal["ok", "invalid", "rejected", "deadline", "failed", "cancelled"]
# Why its pool was chosen. only: its model has no other. weight: by its share. conversation: by
# its earlier turns. price: the cheapest predicted to meet the SLO. soonest: none is.
RoutedBy = Literal["", "only", "weight", "conversation", "price", "soonest"]
# In order: the body arrives; the prompt is read and a replica is chosen; the request waits for its
# turn; it waits for a replica that accepts it; a replica has it, without a token yet; it is
# answered.
Stage = Literal["upload", "placement", "turn", "reservation", "engine", "answer"]
# The kinds of a tenant's limits.
LimitKind = Literal["requests", "tokens", "concurrent"]


class Leg:
    """One attempt at a request, from `with` to its end.

    `replica_id`: the last target. `headers` make the engine's span a child.
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
        """`error`: how the attempt failed, if its request was not retried."""

    def continues(self, tokens: int) -> None:
        """The attempt continues an answer of `tokens` tokens that another engine started."""

    def failed(self, code: str) -> None:
        """The engine failed before its answer was complete; `code` is the API's."""


class RequestTrace:
    """One request, whose client sent `headers`; this one creates no spans."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        given = headers or {}
        self._context = {name: given[name] for name in CONTEXT_HEADERS if name in given}

    def placed(self, facts: Callable[[], Mapping[str, Fact | None]]) -> None:
        """Record the placement: `facts` have the target and the reasons, by their names below
        `antefix.`."""

    def attempt(self, record: RequestRecord) -> Leg:
        """Start an attempt to send it to an engine."""
        return Leg(self._context)

    def ended(self, record: RequestRecord) -> None:
        """Record the end, of any outcome."""


class GatewayTracing:
    """Tracing of one gateway; this one creates no spans."""

    def request(self, headers: Mapping[str, str], since_s: float) -> RequestTrace:
        """Start a trace of a request that arrived `since_s` seconds ago and is placed now."""
        return RequestTrace(headers)

    async def close(self) -> None:
        """Send the remaining spans, as far as the collector accepts them now."""


@dataclass
class Phases:
    """Phases of the time to a request's first token, in seconds; only `engine_s` is an engine's.

    `upload_s`: its body arrived, before the request counts as arrived. `read_s`: its prompt was
    read and looked up in the index. `promotion_s`: a warm replica was promoted for it. `wait_s`: it
    was queued. `retry_s`: failed attempts. `engine_s`: from its last placement to its first token;
    None before that.
    """

    upload_s: float = 0.0
    read_s: float = 0.0
    promotion_s: float = 0.0
    wait_s: float = 0.0
    retry_s: float = 0.0
    engine_s: float | None = None


@dataclass(frozen=True)
class LimitLeft:
    """One limit of a request's tenant: requests or tokens in any minute, or concurrent requests.

    It applies to `model`, or to all together if that is empty. `left`: the rest after the request,
    or at its rejection; None: unknown.
    """

    model: str
    kind: LimitKind
    limit: int
    left: int | None = None


@dataclass(frozen=True)
class Charge:
    """The budget that a request reserved before it was placed.

    `tokens`: the most that it may use; `refused`: the exhausted limit; `by_share`: taken from the
    gateway's share, because Redis was unavailable.
    """

    tokens: int
    limits: tuple[LimitLeft, ...]
    refused: str | None = None
    by_share: bool = False


@dataclass(eq=False)
class RequestRecord:
    """Facts of one request: never its prompt or answer. Times are seconds.

    `arrived`, on the event loop's clock, is when its body was complete; until then, when its
    headers arrived. `pieces_at`: the times at which the chunks of a stream were sent. `operation`:
    its name in traces. `adapter`: the LoRA adapter's name. `pool`: the requested pool; `routed_to`:
    this pool or an adapter of it, as the model's route chose; `offers`: of pools that compete for
    it. `served_by`: the pool that answered, another one after an overflow. `body_bytes`: the bytes
    of its body that the gateway stores.

    `charge`: None if the tenant has no limits. `replica_id`: the last target; "": none. `explain`
    returns the decision as in an explanation; None: no decision yet. `outcome` is "cancelled" (the
    client left) until it is known; `error` is the API's code for a failure. `left_at`: when its
    client left an answer, where `duration_s` ends.

    `finish_reason`: why the engine ended the answer, by vLLM's word; empty if unknown.

    `resumed`: the result for an answer whose engine or gateway was lost in the middle. `moved`: the
    result for one that can continue elsewhere, and whose engine was removed; "" for all others.
    `resume_mode`: whether another engine continued it with tokens that are proved equal.
    """

    request_id: str
    tenant: str
    path: str
    arrived: float
    operation: str = ""
    model: str = ""
    adapter: str = ""
    pool: str = ""
    routed_to: str = ""
    routed_by: RoutedBy = ""
    offers: Sequence[Mapping[str, Any]] = ()
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
    finish_reason: str = ""
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
        """Return the stage of the request."""
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
        """Return when its headers arrived."""
        return self.arrived - self.phases.upload_s

    def complete(self, now: float) -> None:
        """Record the complete body. The time of the upload depends on the client, and no objective
        includes it."""
        self.phases.upload_s, self.arrived, self.is_uploaded = now - self.arrived, now, True

    @property
    def gaps_s(self) -> list[float]:
        """Return the gaps between the chunks of a stream."""
        return [later - earlier for earlier, later in pairwise(self.pieces_at)]

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per output token after the first; None for fewer than two."""
        if self.ttft_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return max(0.0, self.duration_s - self.ttft_s) / (self.output_tokens - 1)

    def failed(self, status: int, code: str) -> None:
        """Record an error response, or an answer interrupted by an error."""
        self.error, self.outcome = code, _outcome(status, code)
        self.status = self.status or status


def _outcome(status: int, code: str) -> Outcome:
    if code == OVER_BUDGET:  # the fleet could have served it, so it misses no objective
        return "invalid"
    if status == 429:
        return "rejected"
    if status == 504:
        return "deadline"
    return "failed" if status >= 500 else "invalid"
