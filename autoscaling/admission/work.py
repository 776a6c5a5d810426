"""The engine seconds of a request, by which tenants share a pool. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaling.admission.scheduling_request import Attempt, Computed, SchedulingRequest
from router.board.load import LoadBoard, ReplicaLoad
from router.choice.policies import Candidate


def expected_s(board: LoadBoard, request: SchedulingRequest, on: Candidate) -> float:
    """Return the engine seconds that the request is expected to take there."""
    load = board.load_of(on.replica_id)
    if load is None:
        return 0.0
    tokens = max(0, request.prompt.prompt_tokens - on.cached_tokens)
    return _engine_s(load, tokens, load.pace.decode_s, request.sequences)


def expected_anywhere(
    board: LoadBoard, request: SchedulingRequest, ranked: Sequence[Candidate]
) -> tuple[int, float]:
    """Return the prompt tokens and engine seconds that the request is expected to take at the
    candidate that would answer first; without candidates its whole prompt, and 0 seconds."""
    tokens = request.prompt.prompt_tokens
    if not ranked:
        return tokens, 0.0
    best = min(ranked, key=lambda candidate: candidate.raw_ttft_s)
    return max(0, tokens - best.cached_tokens), expected_s(board, request, best)


def done_s(
    board: LoadBoard, attempt: Attempt, served_by: str | None, computed: Computed | None
) -> float:
    """Return the engine seconds that an attempt took: 0 if no replica served it, and the expected
    ones if they are unknown."""
    if served_by is None:
        return 0.0
    load = board.load_of(served_by)
    if computed is None or load is None:
        return attempt.work_s
    tokens = computed.tokens
    if tokens is None:
        cached_tokens = attempt.chosen.cached_tokens if attempt.chosen else 0
        tokens = attempt.request.prompt.prompt_tokens - cached_tokens
    return _engine_s(load, tokens, computed.decode_s, attempt.request.sequences)


def _engine_s(load: ReplicaLoad, tokens: int, decode_s: float, sequences: int) -> float:
    """Return the time to compute `tokens` prompt tokens, and the share of `sequences` sequences in
    the steps of `decode_s`."""
    share = sequences / (load.queue.running + sequences)
    return tokens / load.pace.prefill_rate + max(0.0, decode_s) * share
