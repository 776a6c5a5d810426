"""What we rely on in vLLM is still there. One file, so that one process imports vLLM for it."""

import asyncio
import dataclasses
import fnmatch
import importlib.util
import inspect
import itertools
import logging
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from deployments.app import ENGINE_ENVIRONMENT
from deployments.engine.vllm import compile_cache, core_process, prompt_length, stats
from deployments.engine.vllm.adapter import NO_HOSTS
from deployments.engine.vllm.args import _flags, parse
from deployments.engine.vllm.continuing import _OF_SCHEDULING, made_by, proof_of, why_not
from deployments.engine.vllm.continuing_ids import keep_ids, why_no_responses
from deployments.engine.vllm.heartbeat import HEARTBEAT
from deployments.engine.vllm.plugin import _say_what_the_engine_does
from deployments.engine.vllm.speculation import TAKE_ANY_NUMBER, Measured, measure
from deployments.engine.vllm.stats import EngineStats
from deployments.engine.vllm.watched_engine import CallInEngine, WatchedEngine
from deployments.fleet.settings.reserved import RESERVED_ENGINE_ARGS
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.gateway.checks import kept_elsewhere
from deployments.gateway.intake.errors import from_engine
from deployments.wire import continuation
from deployments.wire.continuation import Continuation, Known

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_kv_events_have_the_fields_we_rely_on() -> None:
    from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch

    def fields(event: type) -> set[str]:
        return {field.name for field in msgspec.structs.fields(event)}

    stored = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"}
    assert fields(BlockStored) >= stored
    assert fields(BlockRemoved) >= {"block_hashes"}
    assert fields(EventBatch) >= {"ts", "events"}
    assert issubclass(AllBlocksCleared, msgspec.Struct)


def test_a_dead_engine_says_so_in_the_words_that_gateways_look_for() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    assert EngineError(500, str(EngineDeadError()).encode()).is_dead


@pytest.mark.parametrize("prompt", [{"prompt": "a" * 999}, {"prompt_token_ids": [1] * 11}])
def test_a_prompt_that_is_too_long_is_named_so_that_gateways_know(prompt: Any) -> None:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.params import TokenizeParams

    limits = TokenizeParams(max_total_tokens=10)
    check = limits.apply_pre_tokenization if "prompt" in prompt else limits.apply_post_tokenization
    with pytest.raises(VLLMValidationError) as refused:
        check(SimpleNamespace(max_chars_per_token=4, truncation_side="left"), prompt)
    told = create_error_response(refused.value).model_dump_json().encode()
    assert from_engine(400, told, "id").code == "context_length_exceeded"


def test_too_many_output_tokens_are_named_as_the_client_named_them() -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.params import TokenizeParams

    with pytest.raises(VLLMValidationError) as refused:
        TokenizeParams(10, 11, max_output_tokens_param="max_completion_tokens")
    assert refused.value.parameter == "max_completion_tokens"


def test_a_prompt_that_fills_the_context_is_named_as_a_longer_one() -> None:
    from vllm.exceptions import VLLMValidationError

    prompt_length.refuse_by_name()
    for api in ("chat_completion", "completion", "responses"):
        serving = import_module(f"vllm.entrypoints.openai.{api}.serving")
        assert serving.get_max_tokens(10, 5, 9, {}, truncate_prompt_tokens=None) == 1
        with pytest.raises(VLLMValidationError) as refused:
            serving.get_max_tokens(10, 5, 10, {}, truncate_prompt_tokens=None)
        assert refused.value.parameter == "input_tokens"


def test_a_response_names_a_prompt_that_fills_the_context_as_others_do() -> None:
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    prompt_length.refuse_by_name()
    serving = object.__new__(OpenAIServingResponses)
    serving.model_config = SimpleNamespace(max_model_len=10)
    serving._extract_prompt_len = lambda prompt: prompt
    serving.create_error_response = create_error_response
    assert serving._validate_generator_input(9) is None
    assert serving._validate_generator_input(10).error.param == "input_tokens"


def test_a_clock_that_is_set_back_makes_no_engine_seem_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts of before and of after had been computed in the same seconds, it seemed."""
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

    told, now = EngineStats(), SimpleNamespace(monotonic=1000.0, epoch=1.7e9)
    monkeypatch.setattr(stats, "time", SimpleNamespace(monotonic=lambda: now.monotonic))
    for second in range(10):
        now.monotonic += 1.0
        now.epoch += -4.0 if second == 5 else 1.0
        iteration = IterationStats()
        iteration.iteration_timestamp = now.epoch
        iteration.finished_requests = [
            FinishedRequestStats(finish_reason=None, num_prompt_tokens=1000, prefill_time=1.0)
        ]
        told.record(None, iteration)
    assert told.prefill_rate == pytest.approx(1000.0)


def test_answers_take_as_long_as_steps_do_now() -> None:
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

    told = EngineStats()
    for seconds in (*[0.1] * 100, *[1.0] * 20):
        iteration = IterationStats()
        iteration.time_to_first_tokens_iter.append(0.5)
        iteration.inter_token_latencies_iter += [seconds] * 4
        iteration.num_generation_tokens = 5
        told.record(SchedulerStats(), iteration)
    iteration = IterationStats()
    ended = FinishedRequestStats(finish_reason=None, num_generation_tokens=17)
    iteration.finished_requests = [ended]
    told.record(None, iteration)
    assert told.decode_s == pytest.approx(16.0, rel=0.05)


def test_request_states_tell_what_is_queued() -> None:
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

    assert "self.request_states" in inspect.getsource(OutputProcessor.__init__)
    state = inspect.getsource(RequestState.__init__)
    assert "self.is_prefilling" in state and "self.prompt_len" in state
    assert "kv_cache_usage" in SchedulerStats.__dataclass_fields__
    finished = FinishedRequestStats.__dataclass_fields__
    needed = {"num_prompt_tokens", "num_cached_tokens", "num_generation_tokens"}
    assert needed | {"prefill_time", "decode_time"} <= finished.keys()
    assert IterationStats().inter_token_latencies_iter == []


def test_an_engine_can_say_what_it_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vllm.config import DeviceConfig, ModelConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
    from vllm.v1.engine import EngineCoreRequestType, core
    from vllm.v1.executor import Executor

    loop, proc = inspect.getsource(core.EngineCoreProc), core.EngineCoreProc
    step = inspect.getsource(core.EngineCore.step_with_batch_queue)
    for call in ("_process_input_queue()", "_handle_client_request(*req)", "step_fn()"):
        assert f"self.{call}" in loop
    assert "self._notify_idle_state_callbacks()" in loop
    for source in (step, inspect.getsource(core.EngineCore.step)):
        assert "self.model_executor.execute_model(" in source
        assert "self.scheduler.update_from_output(" in source
    assert callable(Executor.execute_model) and callable(ModelConfig.get_hidden_size)
    assert EngineCoreRequestType.UTILITY.name == "UTILITY"
    scheduled = {"scheduled_encoder_inputs", "has_sync_kv_loads", "num_scheduled_tokens"}
    scheduled |= {"total_num_scheduled_tokens", "scheduled_new_reqs", "scheduled_cached_reqs"}
    scheduled |= {"finished_req_ids", "scheduled_spec_decode_tokens"}
    assert scheduled <= SchedulerOutput.__dataclass_fields__.keys()
    known = {"req_ids", "num_computed_tokens", "resumed_req_ids"}
    assert known <= CachedRequestData.__dataclass_fields__.keys()
    new = {"req_id", "num_computed_tokens", "sampling_params"}
    assert new <= NewRequestData.__dataclass_fields__.keys()
    assert NewRequestData.prompt_len and "device_type" in DeviceConfig.__dataclass_fields__
    assert {"temperature", "logprobs", "seed"} <= set(SamplingParams().__struct_fields__)
    # a data-parallel engine waits for others: it has a loop of its own, which says nothing
    assert "run_busy_loop" in vars(core.DPEngineCoreProc)
    run_busy_loop = proc.run_busy_loop
    monkeypatch.setattr(proc, "run_busy_loop", run_busy_loop)
    _say_what_the_engine_does()
    assert proc.run_busy_loop is run_busy_loop  # no replica asks
    monkeypatch.setenv(HEARTBEAT, str(tmp_path / "heartbeat"))
    _say_what_the_engine_does()
    told = proc.run_busy_loop
    assert told is not run_busy_loop
    _say_what_the_engine_does()
    assert proc.run_busy_loop is told


# On CPUs and in Ray's actors vLLM spawns, on a GPU elsewhere it forks.
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_engine_s_process_can_be_begun_by_us(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine import utils

    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", method)
    source = inspect.getsource(utils.CoreEngineProcManager.__init__)
    for said in ("context = get_mp_context()", "context.Process(", "target=", "name=", "kwargs="):
        assert said in source
    assert "proc.start()" in source
    with core_process.begun_by_us():
        ours = utils.get_mp_context()
        assert ours.get_start_method() == "spawn"
        process = ours.Process(target=print, name="EngineCore", kwargs={})
        assert isinstance(process, core_process._EngineProcess)
    for name in core_process._MODULES:
        assert importlib.util.find_spec(name), name


@pytest.mark.parametrize(("reports_reuse", "mode"), [(False, "incremental"), (True, "full")])
def test_no_client_decides_which_kv_events_an_engine_sends(
    reports_reuse: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.request import Request

    class NotStarted(WatchedEngine):
        def __del__(self) -> None:
            pass

    monkeypatch.setattr(AsyncLLM, "generate", lambda self, prompt, params, *rest, **more: None)
    engine = NotStarted.__new__(NotStarted)
    engine.watch()
    engine.reports_reuse = reports_reuse
    for asked in ("full", "incremental", "other"):
        extra_args = {"kv_cache_report_mode": asked, "mine": 1}
        params = SamplingParams(max_tokens=1, extra_args=extra_args)
        engine.generate({"prompt_token_ids": [1]}, params, "id")
        request = Request("id", [1], params, None)
        assert request.kv_cache_report_mode == mode
        assert params.extra_args["mine"] == 1


@pytest.mark.parametrize("has_died", [True, False])
async def test_a_request_that_fails_because_its_engine_died_says_so(
    has_died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM may notice the request's failure before the death of its process."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    class NotStarted(WatchedEngine):
        looks = 0

        def __del__(self) -> None:
            pass

        @property
        def errored(self) -> bool:
            self.looks += 1
            return has_died and self.looks > 2

    async def fails(*asked: Any, **more: Any) -> AsyncGenerator[Any, None]:
        raise EngineGenerateError
        yield

    monkeypatch.setattr(AsyncLLM, "generate", fails)
    engine = NotStarted.__new__(NotStarted)
    engine.watch()
    with pytest.raises(EngineDeadError if has_died else EngineGenerateError):
        await anext(engine.generate({"prompt_token_ids": [1]}, SamplingParams(), "id"))


# Safe in anybody's hands: they change one request's own answer, and vLLM bounds what they hold.
FOR_CLIENTS = """
add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
chat_template_kwargs continue_final_message data data_1 data_2 dimensions documents echo embed_dtype
enable_response_messages encoding_format endianness frequency_penalty ignore_eos include
include_reasoning include_stop_str_in_output input instruction instructions items length_penalty
logit_bias logprob_token_ids logprobs max_completion_tokens max_output_tokens max_tokens
max_tokens_per_doc max_tokens_per_query max_tool_calls media_io_kwargs messages metadata min_p
min_tokens mm_payload mm_processor_kwargs model output_config padding parallel_tool_calls
presence_penalty previous_input_messages prompt prompt_cache_key prompt_embeds prompt_logprobs
queries query reasoning reasoning_effort repetition_detection repetition_penalty request_id
response_format return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
return_token_strs return_tokens_as_token_ids routed_experts_prompt_start seed service_tier
session_id skip_special_tokens spaces_between_special_tokens stop stop_sequences stop_token_ids
store stream stream_interval stream_options structured_outputs suffix system task temperature text
text_1 text_2 thinking thinking_token_budget tokens tool_choice tools top_k top_logprobs top_n top_p
truncate_prompt_tokens truncation truncation_side use_activation use_beam_search user watermarking
"""
# Refused or bounded by `deployments.gateway.checks.engine_fields`.
BOUNDED = """
background ec_transfer_params kv_transfer_params n previous_response_id priority vllm_xargs
"""


def test_of_every_field_it_is_decided_whether_clients_may_set_it() -> None:
    """A field that vLLM adds fails here: let it through, or refuse it, on purpose."""
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
    from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

    def fields(of: Any) -> set[str]:
        """Of a model, or of a union of some."""
        inside = {name for part in get_args(of) for name in fields(part)}
        return inside | set(getattr(of, "model_fields", ()))

    requests = (
        *(ChatCompletionRequest, CompletionRequest, ResponsesRequest, EmbeddingRequest),
        *(anthropic.AnthropicMessagesRequest, anthropic.AnthropicCountTokensRequest),
        *(ClassificationRequest, PoolingRequest, RerankRequest, ScoreRequest),
    )
    found = [fields(of) for of in (*requests, TokenizeRequest, DetokenizeRequest)]
    assert set().union(*found) == {*FOR_CLIENTS.split(), *BOUNDED.split()}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/a.png", "https://example.com/a.png"])
def test_an_engine_without_a_list_of_hosts_fetches_nothing(url: str) -> None:
    from vllm.multimodal.media import MediaConnector

    connector = MediaConnector(allowed_media_domains=NO_HOSTS)
    with pytest.raises(ValueError, match="must be from one of the allowed domains"):
        connector.fetch_image(url)


def test_a_listed_host_leads_an_engine_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.multimodal.media import MediaConnector

    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("location", f"http://localhost:{server.server_port}/inside")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    for name, value in ENGINE_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connector = MediaConnector(allowed_media_domains=["127.0.0.1"])
        with pytest.raises(Exception, match=r"\S"):
            connector.fetch_image(f"http://127.0.0.1:{server.server_port}/a.png")
        server.shutdown()
    assert asked == ["/a.png"]


def test_every_answer_of_a_request_is_in_its_queue() -> None:
    engine = object.__new__(WatchedEngine)
    engine.watch()
    states = {"a-0": SimpleNamespace(is_prefilling=False), "b-0": None}
    ids = {"a": ["a-0"], "b": ["b-0"]}
    engine.output_processor = SimpleNamespace(request_states=states, external_req_ids=ids)
    engine.requests = {
        1: CallInEngine("a", 10, sequences=8),
        2: CallInEngine("b", 20, sequences=3),
        3: CallInEngine("c", 30),
    }
    assert engine.queue() == (4, 8, 50)


async def test_a_constraint_that_waits_for_its_trial_keeps_nobody_waiting() -> None:
    tried = asyncio.Event()

    class Gate:
        async def admit(self, structured: Any, of: str) -> None:
            await tried.wait()

    async def outputs() -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(outputs=[], finished=True)

    engine = object.__new__(WatchedEngine)
    engine.watch()
    engine.output_processor = SimpleNamespace(request_states={}, external_req_ids={})
    engine.grammars = Gate()  # type: ignore[assignment]
    params = SimpleNamespace(n=1, structured_outputs=object(), extra_args={})
    answer = engine._watched(outputs(), {"prompt_token_ids": [1, 2, 3]}, "a", params)
    coming = asyncio.ensure_future(anext(answer))
    await asyncio.sleep(0)
    assert engine.queue() == (0, 0, 0)  # gateways hold requests where an engine's queue is long
    tried.set()
    await coming
    assert engine.queue()[1] == 1
    await answer.aclose()
    assert engine.queue() == (0, 0, 0)


def test_the_cpu_build_still_does_not_know_ray() -> None:
    """Why `deployments.app` keeps its replicas in one node, and why stages on two nodes are tested
    with GPUs alone. (Its pipeline of processes loads, and fails at the first request.)
    """
    from vllm.platforms.cpu import CpuPlatform

    assert not CpuPlatform.ray_device_key


@pytest.mark.parametrize(
    ("asynchronous", "scheduler"), [(False, "MeasuredScheduler"), (True, "MeasuredAsyncScheduler")]
)
def test_the_kind_of_scheduler_stays_as_vllm_would_have_it(
    asynchronous: bool, scheduler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTEFIX_SPECULATION", "")
    kind = SimpleNamespace(scheduler_cls=None, async_scheduling=asynchronous)
    config: Any = SimpleNamespace(speculative_config=object(), scheduler_config=kind)
    measure(config, "keep", tmp_path / "report")
    assert kind.scheduler_cls == f"deployments.engine.vllm.measured_schedulers.{scheduler}"
    module, _, name = kind.scheduler_cls.rpartition(".")
    made = getattr(import_module(module), name)
    assert issubclass(made, Measured)
    assert made.take_any_number > TAKE_ANY_NUMBER


def test_every_reserved_flag_is_one_of_vllms() -> None:
    unknown = [name for name in RESERVED_ENGINE_ARGS if not fnmatch.filter(_flags(), name)]
    # the positional argument, which has no flag
    assert unknown == ["model_tag"]


def test_a_fleets_arguments_arrive() -> None:
    args = parse("a/b", "b", {"max-model-len": "2k", "kv_events_config": {"topic": "t"}})
    assert (args.model, args.served_model_name, args.max_model_len) == ("a/b", ["b"], 2000)


def test_a_mistake_that_a_stream_tells_its_client_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.exceptions import VLLMValidationError

    from deployments.engine.vllm import streams

    def meet(logger: logging.Logger, error: Exception) -> None:
        try:
            raise error
        except type(error):
            logger.exception("Error in stream generator.")

    streams.log_no_mistakes()
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    for name in streams.LOGGERS:
        logger = import_module(name).logger
        assert logger.name == name
        meet(logger, VLLMValidationError("what the client has sent"))
        assert not caplog.records
        meet(logger, RuntimeError("ours"))
        assert len(caplog.records) == 1
        caplog.clear()


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
def test_an_engine_offers_to_go_on_with_what_it_can(
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
def test_an_engine_offers_to_go_on_with_nothing_else(
    params: dict[str, Any], engine: dict[str, Any], prompt: Any
) -> None:
    assert _why_not(engine, prompt, **params)


def test_an_answer_in_one_piece_has_no_logprobs_of_another_engine() -> None:
    from vllm.sampling_params import RequestOutputKind

    for kind, logprobs in itertools.product(RequestOutputKind, (None, 1)):
        offered = _why_not({}, TOKENS, output_kind=kind, logprobs=logprobs) is None
        streams, whole = kind == RequestOutputKind.DELTA, kind == RequestOutputKind.FINAL_ONLY
        assert offered == (streams or (whole and logprobs is None))


def test_a_response_has_no_logprobs_of_another_engine() -> None:
    for logprobs in (None, 1):
        reason = _why_not({}, TOKENS, is_response=True, logprobs=logprobs)
        assert (reason is None) == (logprobs is None)


def test_vllm_reads_no_files_and_keeps_no_items() -> None:
    """Else a gateway refuses what an engine would serve."""
    from vllm.entrypoints.openai.responses.utils import construct_input_messages
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.chat_utils import MM_PARSER_MAP

    assert not MM_PARSER_MAP.keys() & set(kept_elsewhere.FILES)
    items: list[Any] = [{"id": "msg_1", "type": kept_elsewhere.ITEM_REFERENCE}, {"id": "msg_1"}]
    for item in items:
        with pytest.raises((VLLMValidationError, AttributeError, KeyError)):
            construct_input_messages(request_input=[item])


def test_responses_go_on_where_their_server_keeps_none_and_calls_no_tools() -> None:
    def serving(**more: bool) -> Any:
        return SimpleNamespace(**{"enable_store": False, "use_harmony": False} | more)

    assert why_no_responses(serving()) is None
    assert why_no_responses(None)
    assert why_no_responses(serving(enable_store=True))
    assert why_no_responses(serving(use_harmony=True))


def test_ids_are_those_of_the_exchange_wherever_vllm_draws_them() -> None:
    from vllm.entrypoints.openai.responses import protocol, serving, streaming_events, utils
    from vllm.renderers import chat_utils

    keep_ids()
    drawn = [protocol, serving, streaming_events, utils, chat_utils]
    token = continuation.current.set(exchange := Continuation(None))
    try:
        ids = [module.random_uuid() for module in drawn]
        ids += [chat_utils.make_tool_call_id().removeprefix("chatcmpl-tool-")]
    finally:
        continuation.current.reset(token)
    again = Continuation(Known((), 0, 0, 0, f"it-{exchange._seed}"))
    assert ids == [again.next_id() for _ in ids]
    assert serving.random_uuid() != serving.random_uuid()
    source = inspect.getsource(serving)
    assert source.count("time.") == source.count("time.time()")


def made(model: str, args: Mapping[str, Any], is_v2: bool = False) -> str:
    return made_by(model, args, SimpleNamespace(use_v2_model_runner=is_v2))


def test_engines_of_other_arguments_models_or_runners_are_told_apart() -> None:
    args = {"dtype": "float32", "max_model_len": 512}
    same = {made("/a/model", args), made("/b/model", dict(reversed(args.items())))}
    assert len(same) == 1
    assert not same & {made("/a/other", args), made("/a/model", args | {"max_model_len": 8})}
    assert not same & {made("/a/model", args, is_v2=True)}


def test_a_proof_is_of_one_kind_of_processor_and_of_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = made("/a/model", {})
    found = {proof_of(maker), proof_of(made("/a/other", {}))}
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    found.add(proof_of(maker))
    platform = "deployments.engine.vllm.continuing.current_platform.get_device_name"
    monkeypatch.setattr(platform, lambda: "NVIDIA L4")
    found.add(proof_of(maker))
    assert len(found) == 4


def test_engines_that_schedule_otherwise_answer_alike() -> None:
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


def test_triton_keeps_its_kernels_where_we_say_and_inductor_below_vllms_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compile_cache` points both to one folder, that all pods share."""
    from vllm import envs
    from vllm.compilation.compiler_interface import InductorAdaptor

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    environ = {compile_cache.FOLDER: str(tmp_path)}
    compile_cache.keep_compiled(environ)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    root = Path(envs.VLLM_CACHE_ROOT)
    assert root == tmp_path / "vllm"
    backbone = Path(root, "torch_compile_cache/0123456789/rank_0_0/backbone")
    InductorAdaptor().initialize_cache(str(backbone), prefix="backbone")
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == backbone.parent


def test_vllm_fails_on_a_list_of_compiled_graphs_that_was_cut_short(tmp_path: Path) -> None:
    """When it does not, drop `compile_cache._remove_broken_lists`."""
    from vllm.compilation.backends import CompilerManager
    from vllm.config import CompilationConfig

    backbone = tmp_path / "torch_compile_cache/0123456789/rank_0_0/backbone"
    backbone.mkdir(parents=True)
    (backbone / "vllm_compile_cache.py").write_text("{((1, 64), 0, 'inductor'): ")
    manager = CompilerManager(CompilationConfig(backend="inductor"))
    with pytest.raises(SyntaxError):
        manager.initialize_cache(str(backbone), prefix="backbone")


def test_no_entry_of_vllms_caches_depends_on_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import envs

    before = envs.compile_factors()
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    assert envs.compile_factors() == before
