"""An engine that starts a request at its known output tokens, as if it had generated them itself.

vLLM does the same with a preempted request: prompt and outputs are prefilled again. Here a new
request arrives with outputs, in `extra_args`, and all its state is restored: the scheduler's own
list and its block hashes, the grammar, the worker's list (of penalties, `min_tokens`, bad words,
drafts) and its seeded generator. Other requests are not changed. Sources, of vLLM 0.32:
vllm/v1/request.py, vllm/v1/structured_output/__init__.py, vllm/v1/worker/gpu_input_batch.py, and
`forward_cpu` in vllm/v1/sample/ops/topk_topp_sampler.py.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from types import SimpleNamespace
from typing import Any

# In `extra_args` of a request to the engine, and never from a client (`adapter.generate`).
KNOWN_TOKENS = "antefix_known_tokens"


def known_tokens(sampling_params: Any) -> list[int]:
    """Return the known tokens of a resumed request; empty for any other."""
    extra = sampling_params.extra_args if sampling_params is not None else None
    return extra.get(KNOWN_TOKENS) or [] if extra else []


@cache
def register() -> None:
    """Register with vLLM's engine and workers. Repeated calls have no effect."""
    _start_requests_with_outputs()
    _advance_grammars()
    _tell_workers()


def _start_requests_with_outputs() -> None:
    from vllm.v1.request import Request

    make = Request.from_engine_core_request.__func__

    def from_engine_core_request(cls: type[Request], request: Any, block_hasher: Any) -> Any:
        made = make(cls, request, block_hasher)
        tokens = known_tokens(made.sampling_params)
        if tokens:
            made.append_output_token_ids(tokens)
            # these are for prompts, and a failed assertion of vLLM that at most the prompt is
            # cached would end the engine
            made.prefill_stats = None
        return made

    Request.from_engine_core_request = classmethod(from_engine_core_request)


def _advance_grammars() -> None:
    from vllm.v1.structured_output import StructuredOutputManager

    create = StructuredOutputManager._create_grammar

    def create_grammar(self: StructuredOutputManager, request: Any) -> Any:
        grammar = create(self, request)
        tokens = known_tokens(request.sampling_params)
        if tokens:
            _accept(self, request, grammar, tokens)
        return grammar

    StructuredOutputManager._create_grammar = create_grammar


def _accept(manager: Any, request: Any, grammar: Any, tokens: list[int]) -> None:
    """Accept tokens one by one: the grammar starts at the end of reasoning.

    Raises RuntimeError for tokens that no grammar allows: vLLM then fails only this request.
    """
    asked = request.structured_output_request
    so_far = SimpleNamespace(
        request_id=request.request_id,
        use_structured_output=True,
        prompt_token_ids=request.prompt_token_ids,
        all_token_ids=list(request.prompt_token_ids or ()),
        structured_output_request=dataclasses.replace(asked, _grammar=grammar),
    )
    for token in tokens:
        so_far.all_token_ids.append(token)
        if not manager.accept_tokens(so_far, [token]):
            raise RuntimeError("the grammar rejects the answer so far")
    asked.reasoning_ended = so_far.structured_output_request.reasoning_ended


def _tell_workers() -> None:
    import torch
    from vllm.v1.worker.gpu_input_batch import InputBatch

    add = InputBatch.add_request

    def add_request(self: InputBatch, request: Any) -> Any:
        tokens = known_tokens(request.sampling_params)
        # a worker's list is empty only once, and everything that shares it must see the same list
        if tokens and not request.output_token_ids:
            request.output_token_ids.extend(tokens)
            if request.generator is not None:
                for _ in tokens:  # one draw per token, as in the CPU's sampler
                    torch.randint(0, 2**31, (1,), generator=request.generator, dtype=torch.long)
        return add(self, request)

    InputBatch.add_request = add_request
