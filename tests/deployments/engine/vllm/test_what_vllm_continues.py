"""What engines offer to continue, and whose ids and proofs are equal, by what vLLM has."""

import dataclasses
import inspect
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engine.vllm.resuming.continuing import _OF_SCHEDULING, made_by, proof_of, why_not
from deployments.engine.vllm.resuming.continuing_ids import keep_ids, why_no_responses
from deployments.wire import resumable
from deployments.wire.resumable import Known, ResumableExchange

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def _why_not(engine: dict[str, Any], prompt: Any, **params: Any) -> str | None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    config = SimpleNamespace(
        speculative_config=engine.get("speculation"),
        watermark_config=engine.get("watermark"),
        model_config=SimpleNamespace(use_fp64_gumbel=engine.get("fp64", False)),
        use_v2_model_runner=engine.get("v2", False),
    )
    kind = params.pop("output_kind", RequestOutputKind.DELTA)
    response = params.pop("is_response", False)
    return why_not(SamplingParams(output_kind=kind, **params), prompt, config, response)


TOKENS = {"type": "token", "prompt_token_ids": [1]}


@pytest.mark.parametrize(
    ("params", "engine"),
    [
        ({}, {}),
        ({"seed": 1, "n": 2, "logprobs": 2, "stop": ["a"], "min_tokens": 2}, {}),
        ({"temperature": 0, "seed": 1}, {"speculation": object()}),
        ({}, {"speculation": object(), "fp64": True}),
    ],
)
def test_an_engine_offers_to_resume_what_it_can(
    params: dict[str, Any], engine: dict[str, Any]
) -> None:
    assert _why_not(engine, TOKENS, **params) is None


@pytest.mark.parametrize(
    ("params", "engine", "prompt"),
    [
        ({"prompt_logprobs": 1}, {}, TOKENS),
        ({"logprob_token_ids": [1, 2]}, {}, TOKENS),
        ({"seed": 1}, {"speculation": object()}, TOKENS),
        ({"seed": 1}, {"fp64": True}, TOKENS),
        ({"thinking_token_budget": 5}, {}, TOKENS),
        ({"extra_args": {"kv_transfer_params": {}}}, {}, TOKENS),
        ({}, {"watermark": object()}, TOKENS),
        ({}, {}, {"type": "multimodal"}),
        ({}, {}, {"type": "embeds"}),
        ({}, {}, "text"),
    ],
)
def test_an_engine_does_not_offer_to_resume_other_requests(
    params: dict[str, Any], engine: dict[str, Any], prompt: Any
) -> None:
    assert _why_not(engine, prompt, **params)


def test_an_unstreamed_answer_has_no_logprobs_of_another_engine() -> None:
    from vllm.sampling_params import RequestOutputKind

    for kind, logprobs in itertools.product(RequestOutputKind, (None, 1)):
        offered = _why_not({}, TOKENS, output_kind=kind, logprobs=logprobs) is None
        streams, whole = kind == RequestOutputKind.DELTA, kind == RequestOutputKind.FINAL_ONLY
        assert offered == (streams or (whole and logprobs is None))


def test_a_response_has_no_logprobs_of_another_engine() -> None:
    for logprobs in (None, 1):
        reason = _why_not({}, TOKENS, is_response=True, logprobs=logprobs)
        assert (reason is None) == (logprobs is None)


def test_responses_are_resumed_if_the_server_stores_none_and_runs_no_tools() -> None:
    def serving(**more: bool) -> Any:
        return SimpleNamespace(**{"enable_store": False, "use_harmony": False} | more)

    assert why_no_responses(serving()) is None
    assert why_no_responses(None)
    assert why_no_responses(serving(enable_store=True))
    assert why_no_responses(serving(use_harmony=True))


def test_every_id_that_vllm_generates_is_derived_from_the_exchange() -> None:
    from vllm.entrypoints.openai.responses import protocol, serving, streaming_events, utils
    from vllm.renderers import chat_utils

    keep_ids()
    drawn = [protocol, serving, streaming_events, utils, chat_utils]
    token = resumable.current.set(exchange := ResumableExchange(None))
    try:
        ids = [module.random_uuid() for module in drawn]
        ids += [chat_utils.make_tool_call_id().removeprefix("chatcmpl-tool-")]
    finally:
        resumable.current.reset(token)
    again = ResumableExchange(Known((), 0, 0, 0, f"it-{exchange._seed}"))
    assert ids == [again.next_id() for _ in ids]
    assert serving.random_uuid() != serving.random_uuid()
    source = inspect.getsource(serving)
    assert source.count("time.") == source.count("time.time()")


def made(model: str, args: Mapping[str, Any], is_v2: bool = False) -> str:
    return made_by(model, args, SimpleNamespace(use_v2_model_runner=is_v2))


def test_engines_with_other_arguments_models_or_runners_are_distinguished() -> None:
    args = {"dtype": "float32", "max_model_len": 512}
    same = {made("/a/model", args), made("/b/model", dict(reversed(args.items())))}
    assert len(same) == 1
    assert not same & {made("/a/other", args), made("/a/model", args | {"max_model_len": 8})}
    assert not same & {made("/a/model", args, is_v2=True)}


def test_a_proof_applies_to_one_kind_of_processor_and_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = made("/a/model", {})
    found = {proof_of(maker), proof_of(made("/a/other", {}))}
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    found.add(proof_of(maker))
    platform = "deployments.engine.vllm.resuming.continuing.current_platform.get_device_name"
    monkeypatch.setattr(platform, lambda: "NVIDIA L4")
    found.add(proof_of(maker))
    assert len(found) == 4


def test_engines_with_different_schedulers_resume_each_others_answers() -> None:
    args = {"dtype": "float32", "max_num_seqs": 4}
    others: list[dict[str, Any]] = [
        {"dtype": "float32"},
        {"dtype": "float32", "max-num-seqs": 8},
        args | {"gpu_memory_utilization": 0.5, "max_num_batched_tokens": 2048},
    ]
    assert {made("/a/model", other) for other in others} == {made("/a/model", args)}
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert known >= _OF_SCHEDULING, "vLLM has renamed one"
