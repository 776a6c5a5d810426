"""The record of one request, filled on its way; the value that it ends as; and its trace.

The traces here create no spans: they belong to a gateway without a collector
(`observability.traces.tracing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from common.verdicts import VerdictKind

Fact = str | bool | int | float

# The headers of https://www.w3.org/TR/trace-context/
CONTEXT_HEADERS = ("traceparent", "tracestate")

# The API's code for a request over its tenant's budget.
OVER_BUDGET = "rate_limit_exceeded"

# The status of a request whose client left before an answer started, as in proxies' logs.
CLIENT_LEFT = 499

# resumed: another engine resumed the answer. rejected: the engine was asked to, and could not.
# failed: no engine accepted it in time, or that engine was lost as well. impossible: the answer was
# of a kind that cannot be resumed.
Resumed = Literal["", "resumed", "rejected", "failed", "impossible"]
# Off an engine that was drained: moved to another, or ended where it was.
Moved = Literal["", "moved", "stayed"]
# Whether a resumed answer is proved to have the same tokens.
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

    `replica_id`: the last target. `output_tokens`: those of the answer, once the engine has
    reported them. `headers` make the engine's span a child.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.replica_id = ""
        self.output_tokens: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """`error`: how the attempt failed, if its request was not retried."""

    def resumes(self, tokens: int) -> None:
        """The attempt resumes an answer of `tokens` tokens that another engine started."""

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

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
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
    read and looked up in the index. `promotion_s`: a warm replica was promoted for it.
    `queued_s`: it was queued. `retry_s`: failed attempts. `engine_s`: from its last placement to
    its first token; None before that.
    """

    upload_s: float = 0.0
    read_s: float = 0.0
    promotion_s: float = 0.0
    queued_s: float = 0.0
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

    `tokens`: the most that it may use; `exhausted`: the limit without room for it; `by_share`:
    taken from the gateway's share, because Redis was unavailable.
    """

    tokens: int
    limits: tuple[LimitLeft, ...]
    exhausted: str | None = None
    by_share: bool = False


class RequestDecision(Protocol):
    """A decision about a request. It does not refer to the request's record, so both are freed as
    soon as the request has ended."""

    def explained(self) -> Mapping[str, Any]:
        """Return it as in an explanation."""


@dataclass(frozen=True)
class Explained:
    """A decision that was explained when it was made."""

    explanation: Mapping[str, Any]

    def explained(self) -> Mapping[str, Any]:
        return self.explanation


@dataclass(frozen=True)
class RequestFacts:
    """What a request asks for, and where it is sent: fixed when it has been admitted.

    `operation`: its name in traces. `adapter`: the LoRA adapter's name. `pool`: the requested pool;
    `routed_to`: this pool or an adapter of it, as the model's route chose; `offers`: of pools that
    compete for it. `left_out_tools`: the types of offered tools that no engine runs, and that it
    did not get.
    """

    request_id: str
    tenant: str
    path: str
    operation: str = ""
    model: str = ""
    adapter: str = ""
    pool: str = ""
    routed_to: str = ""
    routed_by: RoutedBy = ""
    offers: Sequence[Mapping[str, Any]] = ()
    priority: str = "interactive"
    left_out_tools: Sequence[str] = ()


@dataclass(eq=False)
class RequestRecord:
    """The facts and the timeline of one request: never its prompt or answer. Times are seconds.

    The request's way through the gateway adds to them with one method for each event. No other
    module assigns a field. How the request ended is an `AnswerEnd`.

    `arrived`, on the event loop's clock, is when its body was complete; until then, when its
    headers arrived. `pieces_at`: the times at which the chunks of a stream were sent. `served_by`:
    the pool that answered, another one after an overflow.

    `charge`: None if the tenant has no limits. `replica_id`: the last target; "": none.
    `was_sent`: an engine may have received the request. `decision`: the last one about the request;
    None: there is none yet.
    """

    facts: RequestFacts
    arrived: float
    served_by: str = ""
    verdict: VerdictKind | Literal[""] = ""
    replica_id: str = ""
    was_sent: bool = False
    charge: Charge | None = None
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    pieces_at: list[float] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)
    trace: RequestTrace = field(default_factory=RequestTrace)
    is_uploaded: bool = False
    decision: RequestDecision | None = None

    @property
    def stage(self) -> Stage:
        """Return the stage of the request."""
        if self.ttft_s is not None:
            return "answer"
        if self.replica_id:
            return "engine"
        if self.verdict == "queued":
            return "turn"
        if self.verdict in ("admitted", "overflowed"):
            return "reservation"
        return "placement" if self.is_uploaded else "upload"

    @property
    def connected(self) -> float:
        """Return when its headers arrived."""
        return self.arrived - self.phases.upload_s

    def uploaded(self, at: float) -> None:
        """Record the complete body. The time of the upload depends on the client, and no objective
        includes it."""
        self.phases.upload_s, self.arrived, self.is_uploaded = at - self.arrived, at, True

    def routed(self, model: str, pool: str, *, to: str, by: RoutedBy, adapter: str) -> None:
        """Record the route of the request's model, and the pool or adapter that it chose."""
        self.facts = replace(
            self.facts, model=model, pool=pool, routed_to=to, routed_by=by, adapter=adapter
        )

    def traced(self, trace: RequestTrace) -> None:
        """Record the trace that the request got."""
        self.trace = trace

    def prioritized(self, priority: str) -> None:
        """Record the requested priority."""
        self.facts = replace(self.facts, priority=priority)

    def without_tools(self, left_out: Sequence[str]) -> None:
        """Record the tools that the engine does not get."""
        self.facts = replace(self.facts, left_out_tools=left_out)

    def read(self, seconds: float) -> None:
        """Record the time in which a pool read the prompt."""
        self.phases.read_s += seconds

    def offered(self, by: RoutedBy, offers: Sequence[Mapping[str, Any]]) -> None:
        """Record the offers of competing pools, and why one of them was chosen."""
        self.facts = replace(self.facts, routed_by=by, offers=offers)

    def read_for(self, pool: str) -> None:
        """Record the pool that serves the request, unless it overflows."""
        self.facts = replace(self.facts, pool=pool)

    def charged(self, charge: Charge) -> None:
        """Record the reserved budget."""
        self.charge = charge

    def promoted(self, seconds: float) -> None:
        """Record the time in which a warm replica was promoted."""
        self.phases.promotion_s = seconds

    def admitted(self, verdict: VerdictKind) -> None:
        """Record the verdict of the admission."""
        self.verdict = verdict

    def waited(self, seconds: float) -> None:
        """Record the time in the pool's queue."""
        self.phases.queued_s += seconds

    def retried(self, seconds: float) -> None:
        """Record the time of a failed attempt."""
        self.phases.retry_s += seconds

    def placed(self, replica_id: str) -> None:
        """Record the replica that gets the request, or resumes its answer."""
        self.replica_id = replica_id

    def sent(self) -> None:
        """Record that an engine may have received the request."""
        self.was_sent = True

    def first_token(self, pool: str, replica_id: str, *, ttft_s: float, engine_s: float) -> None:
        """Record the first token, from a replica of `pool`."""
        self.served_by, self.replica_id = pool, replica_id
        self.ttft_s, self.phases.engine_s = ttft_s, engine_s

    def piece(self, at: float) -> None:
        """Record a chunk of the stream."""
        self.pieces_at.append(at)

    def counted(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Record the prompt's tokens as an engine counts them; None: it does not."""
        self.prompt_tokens, self.cached_tokens = prompt_tokens, cached_tokens

    def decided(self, decision: RequestDecision) -> None:
        """Record a decision about the request, or what its first token adds to the last one."""
        self.decision = decision

    @property
    def gaps_s(self) -> list[float]:
        """Return the gaps between the chunks of a stream."""
        return [later - earlier for earlier, later in pairwise(self.pieces_at)]

    def tpot_s(self, end: AnswerEnd) -> float | None:
        """Return the mean time per output token after the first; None for fewer than two."""
        if self.ttft_s is None or end.output_tokens is None or end.output_tokens < 2:
            return None
        return max(0.0, end.duration_s - self.ttft_s) / (end.output_tokens - 1)


@dataclass(frozen=True)
class AnswerEnd:
    """How a request ended, made once when it has.

    `duration_s`: from the complete body until the answer's end, or until its client left.
    `outcome`: "cancelled" if the client left. `status`: the one that the client got. `error`: the
    API's code for a failure. `finish_reason`: why the engine ended the answer, by vLLM's word;
    empty if unknown.

    `resumed`: the result for an answer whose engine was lost in the middle. `moved`: the
    result for one that can resume elsewhere, and whose engine was removed; "" for all others.
    `resume_mode`: whether another engine resumed it with tokens that are proved equal.
    """

    duration_s: float
    outcome: Outcome = "cancelled"
    status: int = CLIENT_LEFT
    error: str = ""
    output_tokens: int | None = None
    finish_reason: str = ""
    resumed: Resumed = ""
    moved: Moved = ""
    resume_mode: ResumeMode = ""

    @classmethod
    def rejected(cls, duration_s: float, status: int, code: str) -> Self:
        """Return the end of a request that was answered with an error only."""
        return cls(duration_s, outcome_of(status, code), status, code)


def outcome_of(status: int, code: str) -> Outcome:
    """Return the outcome of an error response, or of an answer interrupted by an error."""
    if code == OVER_BUDGET:  # the fleet could have served it, so it misses no objective
        return "invalid"
    if status == 429:
        return "rejected"
    if status == 504:
        return "deadline"
    return "failed" if status >= 500 else "invalid"
