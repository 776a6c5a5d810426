"""What a call of `generate` did not yield is counted, in vLLM's own output processor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.stats import IterationStats

from deployments.engine.vllm.watch.call_tokens import CallTokens, follow, report_served
from deployments.wire.confirmation import Confirmation

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PROMPT = [5, 6, 7]


class Processor:
    """vLLM's, which a call adds its sequences to; `metric` is what vLLM counts of all of them."""

    def __init__(self, stream_interval: int) -> None:
        self._vllm = OutputProcessor(None, log_stats=True, stream_interval=stream_interval)
        self.metric = 0
        self.served: list[tuple[list[int], str | None]] = []
        follow(self._vllm)
        report_served(self._vllm, lambda *served: self.served.append(served))

    def add(
        self, name: str, kind: RequestOutputKind, salt: str | None = None, lora: Any = None
    ) -> RequestOutputCollector:
        request = EngineCoreRequest(
            request_id=name,
            external_req_id=name,
            prompt_token_ids=list(PROMPT),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=200, output_kind=kind),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=lora,
            cache_salt=salt,
            data_parallel_rank=None,
        )
        queue = RequestOutputCollector(kind, name)
        self._vllm.add_request(request, None, None, 0, queue)
        return queue

    def step(self, name: str, tokens: int, reason: FinishReason | None = None) -> None:
        stats = IterationStats()
        output = EngineCoreOutput(request_id=name, new_token_ids=[9] * tokens, finish_reason=reason)
        self._vllm.process_outputs([output], 1.0, stats)
        self.metric += stats.num_generation_tokens

    def abort(self, name: str) -> None:
        self._vllm.abort_requests([name], internal=True)


@contextmanager
def call_of(exchange: Confirmation, counted_elsewhere: bool = False) -> Iterator[CallTokens]:
    call = CallTokens(exchange, counted_elsewhere)
    call.begin()
    yield call
    call.end()


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("interval", [1, 40, 1000])
async def test_undelivered_tokens_of_an_abandoned_stream_are_counted(
    interval: int, step: int
) -> None:
    exchange, processor = Confirmation(), Processor(interval)
    with call_of(exchange) as call:
        queue = processor.add("a", RequestOutputKind.DELTA)
        for number in range(30):
            processor.step("a", step)
            if number < 20 and (output := queue.get_nowait()) is not None:
                call.yielded(output)
        assert not exchange.idle.is_set()
        processor.abort("a")
        processor.step("a", step)  # comes too late, and vLLM counts it nowhere
    assert exchange.idle.is_set()
    assert exchange.output_tokens == processor.metric == 30 * step
    assert exchange.prompt_tokens == len(PROMPT)


async def test_an_abandoned_unstreamed_answer_is_counted() -> None:
    exchange, processor = Confirmation(), Processor(1)
    with call_of(exchange):
        for name in ("a", "b"):
            processor.add(name, RequestOutputKind.FINAL_ONLY)
            processor.step(name, 4)
            processor.abort(name)
    assert (exchange.prompt_tokens, exchange.output_tokens) == (len(PROMPT), 8)
    assert exchange.first_token_at is not None


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_finish_reason_is_recorded(elsewhere: bool) -> None:
    exchange, processor = Confirmation(), Processor(1)
    with call_of(exchange, elsewhere) as call:
        queue = processor.add("a", RequestOutputKind.DELTA)
        processor.step("a", 4)
        call.yielded(queue.get_nowait())
        assert exchange.finish_reason == ""
        processor.step("a", 1, FinishReason.LENGTH)
        call.yielded(queue.get_nowait())
    assert exchange.finish_reason == "length"


async def test_a_prompt_abandoned_before_its_first_token_has_no_output() -> None:
    exchange, processor = Confirmation(), Processor(1)
    with call_of(exchange):
        processor.add("a", RequestOutputKind.DELTA)
        processor.abort("a")
    assert (exchange.prompt_tokens, exchange.output_tokens) == (len(PROMPT), 0)
    assert exchange.first_token_at is None


async def test_calls_at_the_same_time_count_their_own_tokens() -> None:
    """Several prompts of a request are calls of several tasks."""
    processor = Processor(40)
    exchanges = [Confirmation(), Confirmation()]

    async def call(place: int) -> None:
        with call_of(exchanges[place]):
            processor.add(f"{place}", RequestOutputKind.DELTA)
            for _ in range(5 + place):
                processor.step(f"{place}", 1)
                await asyncio.sleep(0)

    await asyncio.gather(call(0), call(1))
    assert [exchange.output_tokens for exchange in exchanges] == [5, 6]


async def test_tokens_counted_during_generation_are_not_counted_twice() -> None:
    exchange, processor = Confirmation(), Processor(1)
    with call_of(exchange, counted_elsewhere=True):
        processor.add("a", RequestOutputKind.FINAL_ONLY)
        processor.step("a", 4)
        exchange.first_token(len(PROMPT), 0)
        exchange.generated(4)
    assert (exchange.prompt_tokens, exchange.output_tokens) == (len(PROMPT), 4)


async def test_a_prompt_is_reported_with_its_answer_and_its_salt_when_it_ends() -> None:
    processor = Processor(1)
    with call_of(Confirmation()):
        processor.add("a", RequestOutputKind.FINAL_ONLY, salt="tenant")
        processor.step("a", 2)
        assert processor.served == []
        processor.step("a", 1, FinishReason.LENGTH)
    assert processor.served == [([*PROMPT, 9, 9, 9], "tenant")]


async def test_a_prompt_for_an_adapter_is_not_reported() -> None:
    processor = Processor(1)
    with call_of(Confirmation()):
        processor.add("a", RequestOutputKind.FINAL_ONLY, lora=LoRARequest("l", 1, "/l"))
        processor.step("a", 1, FinishReason.LENGTH)
    assert processor.served == []
