"""What Antefix needs of vLLM's engine is still there."""

import asyncio
import fnmatch
import inspect
import os
from collections.abc import AsyncGenerator, Callable
from importlib import import_module
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from vllm.sampling_params import StructuredOutputsParams

from deployments.engine.vllm import core_process
from deployments.engine.vllm.arguments.args import _flags, parse
from deployments.engine.vllm.grammars.constraints import Unfit
from deployments.engine.vllm.grammars.grammar_gate import AdmittedConstraint
from deployments.engine.vllm.grammars.mask_watch import SLOW_MASKS
from deployments.engine.vllm.patches import compile_cache
from deployments.engine.vllm.plugin import _say_what_the_engine_does
from deployments.engine.vllm.watch import stats
from deployments.engine.vllm.watch.heartbeat import HEARTBEAT
from deployments.engine.vllm.watch.measured_speculation import TAKE_ANY_NUMBER, Measured, measure
from deployments.engine.vllm.watch.stats import EngineStats
from deployments.engine.vllm.watched_engine import CallInEngine, WatchedEngine
from deployments.fleet.settings.reserved import RESERVED_ENGINE_ARGS
from deployments.wire import confirmation
from deployments.wire.confirmation import Confirmation
from tests.waiting import cancelled

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_kv_events_have_the_fields_that_antefix_needs() -> None:
    from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch

    def fields(event: type) -> set[str]:
        return {field.name for field in msgspec.structs.fields(event)}

    stored = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"}
    assert fields(BlockStored) >= stored
    assert fields(BlockRemoved) >= {"block_hashes"}
    assert fields(EventBatch) >= {"ts", "events"}
    assert issubclass(AllBlocksCleared, msgspec.Struct)


def test_setting_the_clock_back_does_not_make_an_engine_seem_faster(
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


def test_the_decode_time_of_answers_follows_recent_steps() -> None:
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


def test_an_engines_own_pulls_do_not_count_as_answers() -> None:
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

    told = EngineStats()
    for request_id, tokens in (("a", 17), *[(f"{stats.PULL}{n}", 1) for n in range(100)]):
        iteration = IterationStats()
        iteration.inter_token_latencies_iter += [1.0]
        iteration.num_generation_tokens = 1
        iteration.finished_requests = [
            FinishedRequestStats(
                finish_reason=None, request_id=request_id, num_generation_tokens=tokens
            )
        ]
        told.record(SchedulerStats(), iteration)
    assert told.decode_s == pytest.approx(16.0, rel=0.05)


def test_request_states_show_queued_requests() -> None:
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

    assert "self.request_states" in inspect.getsource(OutputProcessor.__init__)
    state = inspect.getsource(RequestState.__init__)
    assert "self.is_prefilling" in state and "self.prompt_len" in state
    assert "kv_cache_usage" in SchedulerStats.__dataclass_fields__
    finished = FinishedRequestStats.__dataclass_fields__
    needed = {"request_id", "num_prompt_tokens", "num_cached_tokens", "num_generation_tokens"}
    assert needed | {"prefill_time", "decode_time"} <= finished.keys()
    assert IterationStats().inter_token_latencies_iter == []


def test_vllm_has_the_hooks_that_observe_an_engines_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    # a data-parallel engine waits for others: it has a separate loop, which says nothing
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
def test_antefix_can_start_the_engines_process(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine import utils

    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", method)
    source = inspect.getsource(utils.CoreEngineProcManager.__init__)
    for said in ("context = get_mp_context()", "context.Process(", "target=", "name=", "kwargs="):
        assert said in source
    assert "proc.start()" in source
    with core_process.spawned_engines():
        ours = utils.get_mp_context()
        assert ours.get_start_method() == "spawn"
        process = ours.Process(target=print, name="EngineCore", kwargs={})
        assert isinstance(process, SpawnProcess)


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


def test_every_answer_of_a_request_counts_in_the_queue() -> None:
    engine = object.__new__(WatchedEngine)
    engine.watch()
    states = {"a-0": SimpleNamespace(is_prefilling=False), "b-0": None}
    ids = {"a": ["a-0"], "b": ["b-0"]}
    engine.output_processor = SimpleNamespace(request_states=states, external_req_ids=ids)
    engine.requests = {
        1: CallInEngine("a", 10, sequences=8, tier_tokens=(64, 64, 0)),
        2: CallInEngine("b", 20, sequences=3, tier_tokens=(32, 0, 256)),
        3: CallInEngine("c", 30, tier_tokens=(16, 128, 32)),
    }
    assert engine.queue() == (4, 8, 50, 48, 128, 288)


@pytest.mark.parametrize("ends", ["first token", "cancelled"])
async def test_the_tokens_that_a_request_loads_are_in_the_queue_until_its_first(ends: str) -> None:
    async def outputs() -> AsyncGenerator[Any, None]:
        await go_on.wait()
        yield SimpleNamespace(prompt_token_ids=[1], num_cached_tokens=0, metrics=None)

    engine, go_on = object.__new__(WatchedEngine), asyncio.Event()
    engine.watch()
    engine.output_processor = SimpleNamespace(request_states={}, external_req_ids={})
    exchange = Confirmation(tier_tokens=(64, 128, 32))
    token = confirmation.current.set(exchange)
    # a request with two prompts
    answers = [engine._watched(outputs(), {"prompt_token_ids": [1]}, name) for name in "ab"]
    coming = [asyncio.ensure_future(anext(answer)) for answer in answers]
    confirmation.current.reset(token)
    await asyncio.sleep(0)
    assert engine.queue() == (2, 0, 2, 64, 128, 32)
    if ends == "first token":
        go_on.set()
        await asyncio.gather(*coming)
    else:
        for request in coming:
            await cancelled(request)
    assert engine.queue()[2:] == (0, 0, 0, 0)
    for answer in answers:
        await answer.aclose()


async def test_a_constraint_that_waits_for_its_trial_is_not_in_the_queue() -> None:
    tried = asyncio.Event()

    class Gate:
        async def admit(self, structured: Any, of: str, sequences: int) -> None:
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
    assert not any(engine.queue())  # gateways hold requests where an engine's queue is long
    tried.set()
    await coming
    assert engine.queue()[1] == 1
    await answer.aclose()
    assert not any(engine.queue())


async def test_an_answer_that_was_ended_for_slow_masks_is_the_client_s_error() -> None:
    stopped: list[Any] = []

    class Gate:
        async def admit(self, structured: Any, of: str, sequences: int) -> None:
            pass

        def stopped(self, structured: Any, mask_ms: float) -> None:
            stopped.append((structured, mask_ms))

    async def outputs() -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(
            outputs=[SimpleNamespace(stop_reason=f"{SLOW_MASKS}61.5")], finished=True
        )

    engine = object.__new__(WatchedEngine)
    engine.watch()
    engine.output_processor = SimpleNamespace(request_states={}, external_req_ids={})
    engine.grammars = Gate()  # type: ignore[assignment]
    asked = StructuredOutputsParams(regex="a")
    params = SimpleNamespace(n=1, structured_outputs=asked, extra_args={})
    with pytest.raises(Unfit, match="ended the answer") as error:
        await anext(engine._watched(outputs(), {"prompt_token_ids": [1, 2, 3]}, "a", params))
    assert error.value.parameter == "structured_outputs.regex"
    assert stopped == [(asked, 61.5)]


@pytest.mark.parametrize("ends", ["alone", "by its client"])
async def test_a_request_leaves_the_masks_of_its_engine_when_it_ends(ends: str) -> None:
    left: list[bool] = []

    class Gate:
        async def admit(self, structured: Any, of: str, sequences: int) -> AdmittedConstraint:
            return AdmittedConstraint(None, lambda: left.append(True))

    async def outputs() -> AsyncGenerator[Any, None]:
        one = SimpleNamespace(stop_reason=None, finish_reason="stop", index=0, token_ids=[])
        yield SimpleNamespace(outputs=[one], finished=True)

    engine = object.__new__(WatchedEngine)
    engine.watch()
    engine.output_processor = SimpleNamespace(request_states={}, external_req_ids={})
    engine.grammars = Gate()  # type: ignore[assignment]
    asked = StructuredOutputsParams(regex="a")
    params = SimpleNamespace(n=1, structured_outputs=asked, extra_args={})
    answer = engine._watched(outputs(), {"prompt_token_ids": [1, 2, 3]}, "a", params)
    await anext(answer)
    assert not left
    if ends == "alone":
        assert [one async for one in answer] == []
    await answer.aclose()
    assert left == [True]


def test_vllm_trusts_the_driver_about_copies_between_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Therefore gpus/a100-pcie.yaml disables vLLM's all-reduce: a driver says that two cards can
    copy, also where ACS or an IOMMU redirect the copies."""
    from vllm import envs
    from vllm.distributed.device_communicators import custom_all_reduce

    asked: list[str] = []

    def answer(of: str, result: bool) -> Callable[[int, int], bool]:
        def asking(source: int, target: int) -> bool:
            asked.append(of)
            return result

        return asking

    platform = SimpleNamespace(logical_device_id_to_visible_device_id=lambda number: number)
    monkeypatch.setattr(custom_all_reduce, "current_platform", platform)
    monkeypatch.setattr("torch.cuda.can_device_access_peer", answer("driver", True))
    monkeypatch.setattr(custom_all_reduce, "gpu_p2p_access_check", answer("test", False))
    monkeypatch.delenv("VLLM_SKIP_P2P_CHECK", raising=False)
    can_copy = custom_all_reduce._can_p2p
    assert envs.VLLM_SKIP_P2P_CHECK
    assert can_copy(0, 2)
    assert asked == ["driver"]

    monkeypatch.setenv("VLLM_SKIP_P2P_CHECK", "0")
    assert not can_copy(0, 2)
    assert asked == ["driver", "test"]


@pytest.mark.parametrize("method", ["suffix", "medusa"])
def test_the_newer_model_runner_lacks_methods_of_speculation(method: str) -> None:
    from vllm.config import VllmConfig

    config: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(method=method, parallel_drafting=False),
        parallel_config=SimpleNamespace(
            distributed_executor_backend="mp", pipeline_parallel_size=1, use_ubatching=False
        ),
    )
    lacking = VllmConfig._get_v2_model_runner_unsupported_features(config)
    assert lacking == [f"speculative method '{method}'"]


@pytest.mark.parametrize(("gpus", "used"), [(2, True), (4, False)])
def test_vllm_uses_its_all_reduce_without_nvlink_for_two_gpus_only(gpus: int, used: bool) -> None:
    import torch
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    without_nvlink: Any = SimpleNamespace(
        disabled=False,
        mnnvl_only=False,
        fully_connected=False,
        batch_invariant=False,
        world_size=gpus,
        max_size=2**23,
    )
    assert CustomAllreduce.should_custom_ar(without_nvlink, torch.zeros(1024)) is used


def test_the_cpu_build_still_does_not_know_ray() -> None:
    """Why `deployments.app` keeps its replicas in one node, and why stages on two nodes are tested
    only with GPUs. (Its pipeline of processes loads, and fails at the first request.)
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
    assert kind.scheduler_cls == f"deployments.engine.vllm.watch.measured_schedulers.{scheduler}"
    module, _, name = kind.scheduler_cls.rpartition(".")
    made = getattr(import_module(module), name)
    assert issubclass(made, Measured)
    assert made.take_any_number > TAKE_ANY_NUMBER


def test_every_reserved_flag_is_one_of_vllms() -> None:
    unknown = [name for name in RESERVED_ENGINE_ARGS if not fnmatch.filter(_flags(), name)]
    # the positional argument, which has no flag
    assert unknown == ["model_tag"]


def test_vllm_parses_the_arguments_of_a_fleet() -> None:
    args = parse("a/b", "b", {"max-model-len": "2k", "kv_events_config": {"topic": "t"}})
    assert (args.model, args.served_model_name, args.max_model_len) == ("a/b", ["b"], 2000)


def test_triton_caches_kernels_in_the_given_folder_and_inductor_below_vllms_root(
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


def test_vllm_fails_on_a_truncated_list_of_compiled_graphs(tmp_path: Path) -> None:
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
