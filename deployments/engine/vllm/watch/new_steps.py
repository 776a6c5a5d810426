"""Engine steps that are the first of their kind, so that a GPU may compile for them.

A kernel is compiled, and a CUDA graph captured, when it is first needed for a size or for a
sampling parameter of a request. Each of these is a mark of the step:

    tokens, requests     of the step
    longest, context     most tokens of one request, and the longest context
    drafts               most draft tokens of one request
    a sampling parameter of a request that the step samples first: 0 unset, 1 vLLM's default,
                         2 other

Sizes are powers of two. A step is new while no ended step had one of its marks. Marks count
separately, not together: otherwise steps of mixed traffic would be new for hours.
No vLLM is imported. Source: vllm/v1/core/sched/output.py of vLLM 0.32.
"""

from __future__ import annotations

from typing import Any

Mark = tuple[str, int]
Marks = frozenset[Mark]


class StepsSeen:
    """The steps of one engine."""

    def __init__(self) -> None:
        self._seen: set[Mark] = set()
        # requests that have not sampled yet: prompt tokens, and marks of their parameters
        self._unsampled: dict[str, tuple[int, Marks]] = {}

    def marks(self, scheduled: Any) -> Marks:
        """Return the marks of a step that is about to start. Call it once for each step, in
        order."""
        for request in scheduled.finished_req_ids:
            self._unsampled.pop(request, None)
        for new in scheduled.scheduled_new_reqs:
            self._unsampled[new.req_id] = new.prompt_len, _asked(new.sampling_params)
        ends = context_ends(scheduled)
        found = {
            ("tokens", _power(scheduled.total_num_scheduled_tokens)),
            ("requests", _power(len(ends))),
            ("longest", _power(max(scheduled.num_scheduled_tokens.values(), default=0))),
            ("context", _power(max(ends.values(), default=0))),
        }
        if drafts := scheduled.scheduled_spec_decode_tokens.values():
            found.add(("drafts", _power(max(map(len, drafts)))))
        for request in self._unsampled.keys() & ends.keys():
            tokens, asked = self._unsampled[request]
            if ends[request] >= tokens:
                del self._unsampled[request]
                found |= asked
        return frozenset(found)

    def is_new(self, marks: Marks) -> bool:
        return not marks <= self._seen

    def ended(self, marks: Marks) -> None:
        """Record an ended step with these marks."""
        self._seen |= marks


def context_ends(scheduled: Any) -> dict[str, int]:
    """Return, by request of a step, how many of its tokens are computed when the step has ended."""
    known = scheduled.scheduled_cached_reqs
    context = dict(zip(known.req_ids, known.num_computed_tokens, strict=True))
    context.update((new.req_id, new.num_computed_tokens) for new in scheduled.scheduled_new_reqs)
    sizes = scheduled.num_scheduled_tokens
    return {request: context.get(request, 0) + count for request, count in sizes.items()}


def _asked(params: Any) -> Marks:
    """Return marks of `params`: vLLM's SamplingParams; None for a request without sampling."""
    if params is None:
        return frozenset()
    fields, defaults = params.__struct_fields__, type(params)()
    return frozenset(
        (name, _kind(getattr(params, name), getattr(defaults, name))) for name in fields
    )


def _kind(value: Any, default: Any) -> int:
    # an array can be compared only with an array, and no default is one
    if type(value) is type(default) and value == default:
        return 1 if value else 0
    return 2 if _is_set(value) else 0


def _is_set(value: Any) -> bool:
    return bool(len(value)) if hasattr(value, "__len__") else bool(value)


def _power(size: int) -> int:
    return size.bit_length()
