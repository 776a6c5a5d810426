"""When a request may be answered by another, smaller model instead of being rejected.

The gate determines when, the contract which requests. A request overflows only if the other pool
can serve all of it, and only before its first token. Overflow is limited to a share of its tenant's
traffic.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

# A request's own choice: X-Antefix-Overflow.
OverflowChoice = Literal["never", "allow", "only"]
SHARE_WINDOW_S = 60.0
# A tenant with fewer requests left in the window than this is forgotten.
FORGOTTEN = 0.01


@dataclass(frozen=True)
class OverflowRules:
    """Overflow starts when the best predicted TTFT is above `enter` times the SLO, and ends when it
    is at or below `leave` times.

    At most `max_share` of a tenant's requests in a minute overflow.
    """

    enter: float = 1.0
    leave: float = 0.7
    max_share: float = 0.5


@dataclass
class _Counts:
    """Counts of about the last minute; `at` in seconds of the gate's clock."""

    at: float = 0.0
    requests: float = 0.0
    overflowed: float = 0.0
    open: bool = False

    def fade(self, now: float) -> None:
        kept = math.exp(min(0.0, self.at - now) / SHARE_WINDOW_S)
        self.at = max(now, self.at)
        self.requests *= kept
        self.overflowed *= kept


class OverflowGate:
    """A gate that is open for a tenant while the pool cannot serve it in time.

    Times are seconds of any one clock. Each tenant has a separate share. Requests that ask for
    overflow themselves do not count.
    """

    def __init__(self, rules: OverflowRules) -> None:
        self.rules = rules
        self._counts: defaultdict[str, _Counts] = defaultdict(_Counts)

    @property
    def open(self) -> bool:
        """Return whether it is open for any tenant."""
        return any(counts.open for counts in self._counts.values())

    def is_open_for(self, tenant: str) -> bool:
        return self._counts[tenant].open

    def update(self, pressure: float, tenant: str = "") -> None:
        """Open or close. `pressure`: the best predicted TTFT as a multiple of the SLO."""
        counts = self._counts[tenant]
        limit = self.rules.leave if counts.open else self.rules.enter
        counts.open = pressure > limit

    def has_room(self, now: float, tenant: str = "") -> bool:
        """Return whether one more of the tenant's requests may overflow. Its first in a quiet
        minute always may."""
        counts = self._counts[tenant]
        counts.fade(now)
        most = self.rules.max_share * (counts.requests + 1.0)
        # half is added for a request that was the only one, a while ago
        return counts.overflowed + 1.0 <= max(1.5, most)

    def count(self, overflowed: bool, now: float, tenant: str = "") -> None:
        """Count a decided request of the pool."""
        counts = self._counts[tenant]
        counts.fade(now)
        counts.requests += 1.0
        counts.overflowed += overflowed

    def take_back(self, now: float, tenant: str = "") -> None:
        """Correct the count: an overflowed request was rejected instead."""
        counts = self._counts[tenant]
        counts.fade(now)
        counts.overflowed = max(0.0, counts.overflowed - 1.0)

    def share(self, now: float) -> float:
        """Return the overflowed share of about the last minute's requests of all tenants, 0 to
        1."""
        for counts in self._counts.values():
            counts.fade(now)
        for tenant in [t for t, counts in self._counts.items() if counts.requests < FORGOTTEN]:
            del self._counts[tenant]
        requests = sum(counts.requests for counts in self._counts.values())
        overflowed = sum(counts.overflowed for counts in self._counts.values())
        return overflowed / requests if requests else 0.0


@dataclass(frozen=True)
class Needs:
    """The requirements of a request for the pool that answers it.

    `tokens`: its prompt and its longest answer. `token_ids`: it contains token ids, which another
    model reads differently.
    """

    chat_or_completion: bool
    tokens: int
    adapter: str | None = None
    tools: bool = False
    response_format: bool = False
    logprobs: int = 0
    token_ids: bool = False
    images: bool = False


@dataclass(frozen=True)
class Offers:
    """The capabilities of the overflow pool. `max_model_len` in tokens; None: unknown so far."""

    max_model_len: int | None
    tools: bool
    response_format: bool
    max_logprobs: int
    same_model: bool
    images: bool


def refusal(needs: Needs, offers: Offers) -> str | None:
    """Return why the overflow pool must not answer this request; None: it may."""
    if not needs.chat_or_completion:
        return "only chat completions, completions and messages may overflow"
    if needs.adapter is not None:
        return f"the overflow model does not serve the adapter {needs.adapter!r}"
    if offers.max_model_len is None:
        return "the context length of the overflow model is not known yet"
    if needs.tokens > offers.max_model_len:
        return (
            f"the prompt and the answer may take {needs.tokens:,} tokens, but the overflow model's "
            f"context holds {offers.max_model_len:,}"
        )
    if needs.tools and not offers.tools:
        return "the overflow model does not support tools"
    if needs.response_format and not offers.response_format:
        return "the overflow model does not enforce response formats"
    if needs.logprobs > offers.max_logprobs:
        return (
            f"the request asks for {needs.logprobs:,} logprobs, but the overflow model returns at "
            f"most {offers.max_logprobs:,}"
        )
    if needs.token_ids and not offers.same_model:
        return "the request contains token ids, which the overflow model reads differently"
    if needs.images and not offers.images:
        return "the overflow model does not support images"
    return None
