"""Resume an answer that another vLLM started, in the process of its API server.

The prompt's outputs are prefilled with it (`continuing_core`). Here they go through detokenizer,
stop strings and logprobs, and then, as outputs with their original boundaries, through the
endpoint's own parsers. vLLM sees a request whose first outputs arrived at once. Sources, of
vLLM 0.32: `add_request` and `generate` in vllm/v1/engine/async_llm.py, `process_outputs` in
vllm/v1/engine/output_processor.py, `check_stop` in vllm/v1/core/sched/utils.py.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from vllm import envs
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingType
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import RequestStatus
from vllm.version import __version__ as vllm_version

from deployments.engine.vllm.resuming.continuing_core import KNOWN_TOKENS
from deployments.engine.vllm.resuming.resume_mode import Resume
from deployments.wire import confirmation, resumable
from deployments.wire.confirmation import Confirmation
from deployments.wire.inference_paths import RESPONSES
from deployments.wire.resumable import Known, ResumableExchange

# Arguments that decide when and where a token is computed, but not which token it is. An update of
# one of these can still resume answers of the previous engines.
_OF_SCHEDULING = frozenset(
    {
        *("async_scheduling", "enable_chunked_prefill", "enable_prefix_caching"),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "long_prefill_token_threshold"),
        *("max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens"),
        *("max_num_seqs", "num_gpu_blocks_override", "scheduling_policy"),
        *("disable_log_stats", "enable_log_requests", "otlp_traces_endpoint"),
    }
)


def why_not(
    sampling_params: Any, prompt: Any, config: Any, is_response: bool = False
) -> str | None:
    """Return why another engine could not resume such an answer; None if it could."""
    one_piece = sampling_params.output_kind == RequestOutputKind.FINAL_ONLY
    seeded = sampling_params.sampling_type == SamplingType.RANDOM_SEED
    extra = sampling_params.extra_args or {}
    reasons = {
        "it is neither a stream nor an answer in one piece": not one_piece
        and sampling_params.output_kind != RequestOutputKind.DELTA,
        "its prompt is more than tokens": not isinstance(prompt, Mapping)
        or prompt.get("type") != "token",
        "the prompt's logprobs are sent with the first token": (
            sampling_params.prompt_logprobs is not None
            or sampling_params.prompt_logprob_token_ids is not None
        ),
        "logprobs of the first tokens are the other engine's": one_piece
        and sampling_params.logprobs is not None,
        "a response repeats logprobs at its end": is_response
        and sampling_params.logprobs is not None,
        "it asks for the logprobs of certain tokens": sampling_params.logprob_token_ids,
        "a seed's draws depend on what was drafted": seeded
        and config.speculative_config is not None,
        "a seed's draws are not counted with use_fp64_gumbel": seeded
        and config.model_config.use_fp64_gumbel,
        "a seed's draws are not counted by model runner V1 on this platform": seeded
        and not current_platform.is_cpu()
        and not config.use_v2_model_runner,
        "a thinking budget is counted by the engine that began": (
            sampling_params.thinking_token_budget is not None
        ),
        "a watermark is made by the engine that began": config.watermark_config is not None,
        "its KV cache comes from elsewhere": "kv_transfer_params" in extra
        or "ec_transfer_params" in extra,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def made_by(model: str, engine_args: Mapping[str, Any], config: Any) -> str:
    """Return an id that is equal for engines of one release and model, with arguments that give the
    same answers.

    `model` may be in different folders. vLLM's model runners draw from a seed in different ways,
    and so do platforms.
    """
    named = {key.replace("-", "_"): value for key, value in engine_args.items()}
    kept = {key: value for key, value in named.items() if key not in _OF_SCHEDULING}
    told = [vllm_version, Path(model).name, kept]
    # none of these on V1 and a CPU, so that engines of the last release report the same
    told += [current_platform.device_type] * (not current_platform.is_cpu())
    told += ["V2"] * bool(config.use_v2_model_runner)
    return sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def proof_of(made_by: str) -> str:
    """Return the id of a proof that engines of this `made_by` make the same tokens.

    It holds for one kind of processor, and for kernels that depend on the batch or do not.
    """
    told = [made_by, current_platform.get_device_name(), bool(envs.VLLM_BATCH_INVARIANT)]
    return sha256(json.dumps(told).encode()).hexdigest()[:16]


def _with_adapter(made_by: str, lora_request: Any) -> str:
    """Return the id of answers with an adapter: one that is loaded again is another."""
    if lora_request is None:
        return made_by
    return sha256(f"{made_by} {lora_request.lora_name}".encode()).hexdigest()[:16]


class Continuing:
    """An extension of one AsyncLLM: it reports tokens as they arrive, and starts requests with
    known ones.

    Exchanges without a request for it cost a look-up of a context variable each, and of an empty
    dictionary each step.
    """

    def __init__(self, engine: Any, made_by: str, resume: Resume) -> None:
        self.no_responses: str | None = None  # the reason, once it is known
        self._made_by = made_by
        self._resume = resume
        self._config = engine.vllm_config
        self._max_model_len = int(engine.model_config.max_model_len)
        self._vocabulary = int(engine.model_config.get_vocab_size())
        self._processor = engine.output_processor
        self._process = self._processor.process_outputs
        self._add: Callable[[Any], Awaitable[None]] = engine.engine_core.add_request_async
        # answers in one piece, by vLLM's id: they yield nothing before their end
        self._told: dict[str, _Told] = {}
        self._processor.process_outputs = self._process_outputs
        engine.engine_core.add_request_async = self._add_request

    def begin(
        self,
        exchange: ResumableExchange,
        prompt: Any,
        sampling_params: Any,
        lora_request: Any = None,
    ) -> ResumableExchange | None:
        """Return the exchange of a call of `generate`, if another engine could resume it.

        Raises VLLMValidationError if this call should resume one, and cannot.
        """
        exchange.prompts += 1
        is_response = exchange.path == RESPONSES
        reason = why_not(sampling_params, prompt, self._config, is_response)
        if is_response:
            reason = self.no_responses or reason
        if self._resume.mode == "off":
            reason = self._resume.why
        if exchange.prompts > 1:  # tokens are not assigned to prompts
            reason = "it has several prompts"
        made_by = _with_adapter(self._made_by, lora_request)
        if exchange.known is not None and exchange.known.engine not in ("", made_by):
            reason = "another model, vLLM or engine arguments began it"
        exchange.offered = reason is None
        if reason is None:
            exchange.set_engine(made_by)
            exchange.exact = self._resume.mode == "exact"
            exchange.in_one_piece = sampling_params.output_kind == RequestOutputKind.FINAL_ONLY
            exchange.exact_events = sampling_params.logprobs is not None
            if exchange.in_one_piece and exchange.first_events.missing:
                raise _refused(exchange, "The engine cannot resume: the answer has no events.")
            return exchange
        if exchange.known is not None:
            raise _refused(exchange, f"The engine cannot resume this answer: {reason}.")
        return None

    def end(self, exchange: ResumableExchange) -> None:
        """End the call of `generate`."""
        exchange.replaying = False
        for request_id in [name for name, told in self._told.items() if told.exchange is exchange]:
            del self._told[request_id]

    def _process_outputs(self, outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        done = self._process(outputs, *args, **kwargs)
        if self._told:
            for output in outputs:
                if told := self._told.get(output.request_id):
                    told.tokens(output.new_token_ids)
        return done

    async def _add_request(self, request: Any) -> None:
        """Add the request before the engine does, and before vLLM first waits, so that no output
        can have arrived."""
        exchange = resumable.current.get()
        if exchange is not None and exchange.offered:
            known = exchange.known
            if known is not None and not exchange.replayed:
                self._replay(exchange, known, request)
            state = self._processor.request_states.get(request.request_id)
            if state is None:
                return  # this choice had already ended
            if exchange.in_one_piece:
                self._told[request.request_id] = _Told(exchange, confirmation.current.get(), state)
            if known is not None:
                # vLLM shares one object among n choices
                params = request.sampling_params = copy(request.sampling_params)
                tokens = known.token_ids(state.request_index)
                params.extra_args = {**(params.extra_args or {}), KNOWN_TOKENS: tokens}
        await self._add(request)

    def _replay(self, exchange: ResumableExchange, known: Known, request: Any) -> None:
        """Pass the known tokens through vLLM's output processor, one chunk after the other, for all
        choices of the request.

        Raises VLLMValidationError for chunks that this request cannot have generated.
        """
        exchange.replayed = True
        processor = self._processor
        first = processor.request_states[request.request_id]
        names = list(first.parent_req.child_requests if first.parent_req else [request.request_id])
        choices = {state.request_index: state for state in map(processor.request_states.get, names)}
        replayed = deque[Any]()
        tracing, processor.tracing_enabled = processor.tracing_enabled, False
        try:
            if not all(ids and max(ids) < self._vocabulary for _, ids in known.chunks):
                raise ValueError("no tokens, or tokens of another model")
            for output in _outputs(known, choices, request.sampling_params, self._max_model_len):
                if output.request_id not in processor.request_states:
                    raise ValueError("tokens of a choice that has ended")
                self._process([output])
                if (made := first.queue.get_nowait()) is not None:
                    replayed.append(made)
        except Exception as error:
            processor.abort_requests(names, internal=True)
            told = "The engine cannot resume: the tokens received do not belong to this request."
            raise _refused(exchange, told) from error
        finally:
            processor.tracing_enabled = tracing
        for state in choices.values():
            # the next token is the first that this engine computes, so no gap is counted
            state.is_prefilling = True
            # and the prompt does not count for the prefill rate
            state.prompt_len = known.cached_tokens
        _yield_first(first.queue, replayed, exchange)


def tell_chunks(exchange: ResumableExchange, output: Any) -> None:
    """Report a stream's new outputs to its gateway.

    Raises VLLMValidationError if the replay gave fewer events than the client has, because the next
    events would not continue them.
    """
    # before any token, a chat's client may have received the event with the role
    if exchange.first_events.missing and exchange.known_tokens:
        raise _refused(exchange, "The engine generated different events from the tokens received.")
    if not exchange.in_one_piece:
        for one in output.outputs:
            exchange.chunk(one.index, one.token_ids)


def _refused(exchange: ResumableExchange, reason: str) -> VLLMValidationError:
    """Return a client's error for vLLM, so that it logs nothing; the server answers 409."""
    return VLLMValidationError(str(exchange.refuse(reason)))


def _outputs(
    known: Known, choices: Mapping[int, Any], params: Any, max_model_len: int
) -> Iterator[EngineCoreOutput]:
    """Yield the outputs of the first engine; `choices` are vLLM's states of them.

    Raises KeyError for tokens of a choice that was not requested.
    """
    sequences = {
        index: _Sequence(params, len(state.prompt_token_ids)) for index, state in choices.items()
    }
    for state in choices.values():
        state.num_cached_tokens = known.cached_tokens
    for index, token_ids in known.chunks:
        sequence = sequences[index]
        yield EngineCoreOutput(
            request_id=choices[index].request_id,
            new_token_ids=list(token_ids),
            new_logprobs=_logprobs(token_ids) if params.num_logprobs is not None else None,
            finish_reason=sequence.ends_with(token_ids, max_model_len),
            stop_reason=sequence.stop_reason,
        )


def _yield_first(
    queue: RequestOutputCollector, replayed: deque[Any], exchange: ResumableExchange
) -> None:
    """Yield each of `replayed` in vLLM's queue separately, so that they are not merged into one."""

    def get_nowait() -> Any:
        if replayed:
            return replayed.popleft()
        exchange.replaying = False
        return RequestOutputCollector.get_nowait(queue)

    queue.get_nowait = get_nowait


def _logprobs(token_ids: tuple[int, ...]) -> LogprobsLists:
    """Return empty logprobs of these tokens, which their client has; later ones depend only on the
    ids."""
    rows = len(token_ids)
    return LogprobsLists(
        np.array(token_ids, dtype=np.int64).reshape(rows, 1),
        np.zeros((rows, 1), dtype=np.float32),
        np.ones(rows, dtype=np.int64),
    )


class _Sequence:
    """One choice, with the fields that vLLM's scheduler checks for its end."""

    pooling_params = None

    def __init__(self, sampling_params: Any, prompt_tokens: int) -> None:
        self.sampling_params = sampling_params
        self.max_tokens = sampling_params.max_tokens
        self.output_token_ids: list[int] = []
        self.status: Any = RequestStatus.RUNNING
        self.stop_reason: int | str | None = None
        self._prompt_tokens = prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        return self._prompt_tokens + self.num_output_tokens

    def ends_with(self, token_ids: tuple[int, ...], max_model_len: int) -> Any:
        """Return vLLM's reason to end it with the last of them; None if it continues."""
        self.output_token_ids += token_ids
        if not check_stop(self, max_model_len):
            return None
        return RequestStatus.get_finished_reason(self.status)


@dataclass
class _Told:
    """An answer in one piece, whose tokens are reported as the engine generates them."""

    exchange: ResumableExchange
    confirmation: Confirmation | None
    state: Any

    def tokens(self, token_ids: list[int]) -> None:
        if self.confirmation is not None:
            if self.confirmation.first_token_at is None:
                prompt = len(self.state.prompt_token_ids or ())
                self.confirmation.first_token(prompt, self.state.num_cached_tokens)
            self.confirmation.generated(len(token_ids))
        self.exchange.chunk(self.state.request_index, token_ids)
