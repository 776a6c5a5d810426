"""One try at a request that was let in: where it goes, and what its answer tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from deployments.gateway.pool_router import POLICY_HEADER, Admitted, Outcome, PoolRouter, Prompt
from deployments.gateway.relay import EngineRequest
from deployments.gateway.transport import Route, Slot, Transport
from deployments.wire.confirmation import count_in
from deployments.wire.headers import CACHED_TOKENS_HEADER, LOAD_HEADER, PROMPT_TOKENS_HEADER
from observability.request_record import Fact
from router.load import LoadReport
from router.placer import Attempt
from router.policies import POLICY_NAMES

logger = logging.getLogger("ray.serve")


class RoutedAttempt:
    """One try at a request (`relay.Attempt`)."""

    def __init__(
        self,
        router: PoolRouter,
        transport: Transport,
        request: EngineRequest,
        prompt: Prompt,
        attempt: Attempt,
        admitted: Admitted,
    ) -> None:
        self._router = router
        self._prompt = prompt
        self._attempt = attempt
        self._admitted = admitted
        self._served_by: str | None = None
        chosen = attempt.chosen
        self._is_held = chosen is None
        router.held += self._is_held
        self.transport = transport
        self.request = request
        self.expected_cached = chosen.cached_tokens if chosen else 0
        self.route = Route(
            ranked_ids=attempt.placement.replica_ids,
            best_url=chosen.url if chosen else None,
            ticket=attempt.ticket,
            is_alive=router.placer.board.is_live,
        )

    def facts(self) -> Mapping[str, Fact | None]:
        placement, prompt, chosen = self._attempt.placement, self._prompt, self._attempt.chosen
        return {
            "pool": self._router.name,
            "verdict": self.request.record.verdict,
            "waited_s": self._admitted.waited_s,
            "policy": placement.policy,
            "candidates": len(placement.ranked),
            "index_answered": prompt.held is not None,
            "index_lookup_s": prompt.lookup_s,
            "prompt_read_s": prompt.read_s,
            "prompt_tokens_counted": prompt.request.prompt_tokens,
            "chosen_replica": chosen.replica_id if chosen else None,
            "predicted_ttft_s": chosen.predicted_ttft if chosen else None,
            "cached_tokens_predicted": chosen.cached_tokens if chosen else None,
        }

    def again(self, failed: frozenset[str]) -> RoutedAttempt:
        """The next try, elsewhere: one that was let in is not refused any more."""
        prompt, policy = self._prompt, self._attempt.placement.policy
        attempt = self._router.placer.place(
            prompt.request, prompt.held, failed, policy if policy in POLICY_NAMES else None
        )
        return RoutedAttempt(
            self._router, self.transport, self.request, prompt, attempt, self._admitted
        )

    def answered(
        self, slot: Slot, engine_headers: Mapping[str, str], ttft: float
    ) -> Mapping[str, str]:
        self._served_by = slot.replica_id
        self._release()
        record = self.request.record
        record.served_by, record.replica_id = self._router.name, slot.replica_id
        record.ttft_s = ttft
        record.prompt_tokens = count_in(engine_headers, PROMPT_TOKENS_HEADER)
        record.cached_tokens = count_in(engine_headers, CACHED_TOKENS_HEADER)
        outcome = Outcome(slot.replica_id, ttft, record.prompt_tokens, record.cached_tokens)
        # the client has waited for its first token long enough
        asyncio.get_running_loop().call_soon(self._learn, outcome, _report(engine_headers))
        return self._headers(outcome)

    def _learn(self, outcome: Outcome, report: LoadReport | None) -> None:
        try:
            self._router.placer.answered(self._attempt, outcome.replica_id, report)
            self._router.learn(self._attempt, self.request, self._prompt, outcome, self._admitted)
        except Exception:  # an explanation must not cost the answer
            logger.exception("request %s is not explained", self.request.request_id)

    def ended(self) -> None:
        self._release()
        self._router.placer.ended(self._attempt, self._served_by)

    def _release(self) -> None:
        self._router.held -= self._is_held
        self._is_held = False

    def _headers(self, outcome: Outcome) -> dict[str, str]:
        placement, admitted = self._attempt.placement, self._admitted
        served = next((c for c in placement.ranked if c.replica_id == outcome.replica_id), None)
        headers = {
            POLICY_HEADER: placement.policy,
            "x-antefix-model": self.request.model,
            "x-antefix-admission": admitted.verdict,
            "x-antefix-ttft-ms": f"{outcome.ttft * 1000:.1f}",
            "x-antefix-index-ms": f"{self._prompt.lookup_s * 1000:.2f}",
        }
        if served is not None:
            headers["x-antefix-predicted-ttft-ms"] = f"{served.predicted_ttft * 1000:.1f}"
            headers["x-antefix-cached-tokens-predicted"] = str(served.cached_tokens)
        if outcome.cached_tokens is not None:
            headers[CACHED_TOKENS_HEADER] = str(outcome.cached_tokens)
        if outcome.prompt_tokens is not None:
            headers[PROMPT_TOKENS_HEADER] = str(outcome.prompt_tokens)
        return headers


def _report(headers: Mapping[str, str]) -> LoadReport | None:
    try:
        return LoadReport.from_header(headers.get(LOAD_HEADER, ""))
    except ValueError:  # from a replica of another release
        return None
