"""Steps as vLLM's scheduler makes them (`SchedulerOutput`), as far as a heartbeat looks at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class New:
    """A request's first step: N tokens of its prompt are computed."""

    tokens: int
    prompt: int
    params: Any = None


def step(
    new: Mapping[str, New] = {},
    known: Mapping[str, tuple[int, int]] = {},
    drafts: Mapping[str, Sequence[int]] = {},
    finished: Sequence[str] = (),
) -> Any:
    """`known`: by request, tokens of the step and those computed before it."""
    sizes = {name: request.tokens for name, request in new.items()}
    sizes |= {name: tokens for name, (tokens, _) in known.items()}
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(sizes.values()),
        num_scheduled_tokens=sizes,
        scheduled_encoder_inputs={},
        has_sync_kv_loads=False,
        scheduled_spec_decode_tokens=drafts,
        finished_req_ids=set(finished),
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=name,
                num_computed_tokens=0,
                prompt_len=request.prompt,
                sampling_params=request.params,
            )
            for name, request in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(known),
            num_computed_tokens=[computed for _, computed in known.values()],
            resumed_req_ids=set(),
        ),
    )
