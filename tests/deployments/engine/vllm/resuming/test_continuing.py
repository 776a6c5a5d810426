"""A real engine resumes answers that were cut, and says what it would have said uncut.

Each answer is asked once undisturbed, then cut at several places and resumed, as a gateway does
when an engine is lost: same body, same id, the tokens and the number of events so far. What the
client has then, of both, is compared with the undisturbed answer. Texts and lists are joined over
the events: vLLM makes one event of two tokens when no client took the first in time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest

from benchmarks.harness.load.client_answers import joined, near
from deployments.wire.headers import (
    RESUMABLE_HEADER,
    RESUME_FIELD,
)
from deployments.wire.inference_paths import MESSAGES as ANTHROPIC
from deployments.wire.inference_paths import RESPONSES
from tests.deployments.engine.vllm import continuable_messages as messages
from tests.deployments.engine.vllm.continuable_engine import END_OF_THOUGHT
from tests.deployments.engine.vllm.continuable_requests import (
    CHAT,
    COMPLETIONS,
    END_OF_TEXT,
    GREEDY,
    SEEDED,
    STREAMS,
    THOUGHTS,
    request_body,
)
from tests.deployments.engine.vllm.cut_answers import (
    MODEL,
    Answer,
    Body,
    ask,
    cut_positions,
    resume_state,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[5]
ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_seqs": 4,
    # what was answered is prefilled in several steps, too
    "max_num_batched_tokens": 64,
    "enforce_eager": True,
    "enable_prompt_tokens_details": True,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "deepseek_v3",  # reads only thinking, as that of DeepSeek-R1
}


@dataclass(frozen=True)
class Served:
    url: str
    processes: list[int]


@pytest.fixture(scope="module")
def served(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("engine") / "log"
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "PYTHONHASHSEED": "0",
    }
    module = "tests.deployments.engine.vllm.continuable_engine"
    with (
        log.open("w") as vllm,
        subprocess.Popen(
            [warm_python, "-m", module, json.dumps(ENGINE_ARGS)],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=vllm,
            text=True,
        ) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, log.read_text()[-3000:]
            yield Served(**json.loads(line))
        finally:
            assert server.stdin is not None
            server.stdin.close()


@pytest.fixture
async def http(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(served.url, timeout=timeout) as session:
        yield session


@pytest.mark.parametrize("name", STREAMS)
async def test_a_resumed_stream_equals_an_uninterrupted_stream(
    http: aiohttp.ClientSession, name: str
) -> None:
    path, body = STREAMS[name]
    await assert_resumes_at_every_cut(http, path, request_body(path, body | {"stream": True}))


async def assert_resumes_at_every_cut(
    http: aiohttp.ClientSession, path: str, body: Body, around: Sequence[int] = ()
) -> Answer:
    whole = await ask(http, path, body)
    assert len(whole.chunks) > 1
    for number, cut in enumerate(cut_positions(whole, around)):
        if number % 2:  # otherwise more than the prompt is cached
            await reset(http)
        known = resume_state(whole, cut, body)
        rest = await ask(http, path, body | {RESUME_FIELD: known})
        had = Answer(whole.came[:cut])
        if len(known["chunks"]) < len(had.chunks):  # what is made again is reported again
            assert "logprobs" in body
            kept = known["chunks"]
            had.came = [("tokens", *chunk) for chunk in kept] + [("event", e) for e in had.events]
        both = Answer(had.came + rest.came)
        assert both.token_ids == whole.token_ids, cut
        assert near(_settled(joined(both.events)), _settled(joined(whole.events))), cut
    return whole


def _settled(said: Body) -> Body:
    """Without what went into a cache, which is the affair of the engine that ended it."""
    usage = {**(said["usage"] or {})}
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name) or {}
        usage |= {name: {k: v for k, v in details.items() if k == "cached_tokens"}}
    return said | {"usage": usage}


@pytest.mark.parametrize("name", THOUGHTS)
async def test_resumed_reasoning_equals_uninterrupted_reasoning(
    http: aiohttp.ClientSession, name: str
) -> None:
    path, body = THOUGHTS[name]
    short = {limit: 24 for limit in body if limit.startswith("max_")}
    for bias in range(24, 80, 3):  # until its thought ends by itself, and there is one
        biases = {str(END_OF_THOUGHT): bias, str(END_OF_TEXT): -100}
        body = request_body(path, body | {"logit_bias": biases})
        ids = (await ask(http, path, body | short)).token_ids[0]
        if END_OF_THOUGHT in ids[2:-4]:
            break
    else:
        pytest.fail("its thought never ends in the middle")
    whole = await assert_resumes_at_every_cut(http, path, body, around=[END_OF_THOUGHT])
    said = joined(whole.events)
    if path == CHAT:
        assert len(said["choices"][0]["delta"]["reasoning"]) > 1
        assert len(said["choices"][0]["delta"]["content"]) > 1
    else:
        assert [item["type"] for item in said["output"]] == ["reasoning", "message"]


async def test_an_adapter_produces_different_tokens_than_its_base_model(
    http: aiohttp.ClientSession,
) -> None:
    path, body = STREAMS["adapter"]
    of_adapter = await ask(http, path, request_body(path, body))
    assert of_adapter.token_ids != (await ask(http, path, request_body(path, SEEDED))).token_ids


async def test_an_adapter_in_the_same_batch_does_not_change_answers_of_the_base_model(
    http: aiohttp.ClientSession,
) -> None:
    """Which on CPUs it had, where requests to both were in one batch."""
    path, body = STREAMS["adapter"]
    of_adapter = request_body(path, body | {"max_tokens": 100})
    of_model = request_body(path, GREEDY | {"stream": True, "max_tokens": 60, "logprobs": True})
    alone = await ask(http, path, of_model)
    beside, *_ = await asyncio.gather(
        ask(http, path, of_model), *(ask(http, path, of_adapter) for _ in range(3))
    )
    said = joined(alone.events)["choices"]
    assert len(said[0]["logprobs"]["content"]) == 60
    assert near(joined(beside.events)["choices"], said)


async def test_a_resumed_answer_may_reuse_cached_output_tokens(http: aiohttp.ClientSession) -> None:
    """An engine ends at once where it takes that for a prompt's share of the cache."""
    body = GREEDY | {"prompt": "Once", "max_tokens": 170, "presence_penalty": 0.5, "stream": True}
    whole = await ask(http, COMPLETIONS, body)
    cut = len(whole.came) - 20  # KV blocks of an engine on a CPU hold 128 tokens
    rest = await ask(http, COMPLETIONS, body | {RESUME_FIELD: resume_state(whole, cut)})
    both = Answer(whole.came[:cut] + rest.came)
    assert both.token_ids == whole.token_ids
    assert joined(both.events) == joined(whole.events)


async def reset(http: aiohttp.ClientSession) -> None:
    """The prefix cache, once the last answer's blocks are free."""
    async with asyncio.timeout(60):
        while True:
            async with http.post("/reset") as done:
                if await done.json():
                    return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", messages.STREAMS)
async def test_a_resumed_message_equals_an_uninterrupted_message(
    http: aiohttp.ClientSession, name: str
) -> None:
    body = messages.STREAMS[name]
    stream, whole = (
        await ask(http, ANTHROPIC, body | {"stream": True}),
        await ask(http, ANTHROPIC, body),
    )
    said = messages.message_of(stream.events)
    assert said["output_tokens"] == len(stream.token_ids[0]) and said["blocks"]
    for cut in cut_positions(stream):
        known = resume_state(stream, cut)
        rest = await ask(http, ANTHROPIC, body | {"stream": True, RESUME_FIELD: known})
        both = Answer(stream.came[:cut] + rest.came)
        assert both.token_ids == stream.token_ids, cut
        assert messages.message_of(both.events) == said, cut
    for cut in (1, len(whole.came) // 2, len(whole.came)):
        rest = await ask(http, ANTHROPIC, body | {RESUME_FIELD: resume_state(whole, cut)})
        assert {**rest.body, "usage": 0} == {**whole.body, "usage": 0}, cut


@pytest.mark.parametrize("included", [False, True])
async def test_a_stop_string_is_found_across_the_interruption(
    http: aiohttp.ClientSession, included: bool
) -> None:
    body = request_body(COMPLETIONS, SEEDED | {"stream": True, "return_token_ids": True})
    whole = await ask(http, COMPLETIONS, body)
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in whole.events[:-1]]
    stop = "".join(texts)[len("".join(texts[:8])) - 1 :][:6]  # of more than one token
    stopped = await assert_resumes_at_every_cut(
        http, COMPLETIONS, body | {"stop": [stop], "include_stop_str_in_output": included}
    )
    last = json.loads(stopped.events[-2][6:])["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    assert len(stopped.token_ids[0]) < SEEDED["max_tokens"]


async def test_an_answer_with_bad_words_is_resumed_at_every_token(
    http: aiohttp.ClientSession,
) -> None:
    body = request_body(COMPLETIONS, GREEDY | {"stream": True})
    free = await ask(http, COMPLETIONS, body)
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in free.events[:-1]]
    bad = next(text.strip() for text in texts[4:] if text.strip())
    without = await assert_resumes_at_every_cut(http, COMPLETIONS, body | {"bad_words": [bad]})
    told = [json.loads(event[6:])["choices"][0]["text"] for event in without.events[:-1]]
    assert bad not in (text.strip() for text in told)


IN_ONE_PIECE = ["greedy", "completion", "two choices", "schema", "named tool", "response"]


@pytest.mark.parametrize("name", IN_ONE_PIECE)
async def test_a_resumed_unstreamed_answer_equals_an_uninterrupted_one(
    http: aiohttp.ClientSession, name: str
) -> None:
    path, body = STREAMS[name]
    body = request_body(
        path, {key: value for key, value in body.items() if key != "stream_options"}
    )
    whole = await ask(http, path, body)
    for cut in sorted({1, len(whole.came) // 2, len(whole.came) - 1, len(whole.came)}):
        rest = await ask(http, path, body | {RESUME_FIELD: resume_state(whole, cut)})
        both = Answer(whole.came[:cut] + rest.came)
        assert both.token_ids == whole.token_ids, cut
        assert _timeless(rest.body) == _timeless(whole.body), cut


def _timeless(said: Body) -> Body:
    body = _settled(said)
    created = "created_at" if "created_at" in body else "created"
    assert body.pop(created) > 0  # no client has seen one of an answer in one piece
    return body


REFUSED: dict[str, tuple[str, Body]] = {
    "several prompts": (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 4}),
    "prompt logprobs": (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1, "max_tokens": 4}),
    "logprobs in one piece": (COMPLETIONS, {"prompt": "a", "logprobs": 1, "max_tokens": 4}),
    "a response's logprobs": (
        RESPONSES,
        {"input": "a", "max_output_tokens": 4, "include": ["message.output_text.logprobs"]},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_the_engine_neither_offers_nor_accepts_answers_it_cannot_resume(
    http: aiohttp.ClientSession, name: str
) -> None:
    path, body = REFUSED[name]
    body = {"model": MODEL} | body
    async with http.post(path, json=body, headers={RESUMABLE_HEADER: "1"}) as answer:
        assert answer.status == 200, await answer.read()
        assert RESUMABLE_HEADER not in answer.headers
    known = {"chunks": [[0, [5]]], "events": 0, "cached_tokens": 0, "created": 1}
    await is_refused(http, path, body | {RESUME_FIELD: known})


async def is_refused(http: aiohttp.ClientSession, path: str, body: Body) -> None:
    async with http.post(path, json=body, headers={RESUMABLE_HEADER: "1"}) as answer:
        assert answer.status == 409, await answer.read()
        assert (await answer.json())["error"]["code"] == "cannot_resume"


@pytest.mark.parametrize(
    "wrong",
    [
        {"made_by": "another"},
        {"chunks": [[1, [5]]]},
        {"chunks": [[0, [2**40]]]},
        {"chunks": [[0, []]]},
        {"events": 9},
        {"chunks": [[0, [5, 6, 7, 8]], [0, [9]]]},
    ],
    ids=["made_by", "choice", "token", "empty", "events", "beyond its end"],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_invalid_resume_field_is_refused_and_ends_no_process(
    http: aiohttp.ClientSession, served: Served, wrong: Body, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": "Tell of the ferry.", "max_tokens": 4, "stream": stream}
    known: Body = {"chunks": [[0, [5]]], "events": 0, "cached_tokens": 0, "created": 1}
    await is_refused(http, COMPLETIONS, body | {RESUME_FIELD: known | wrong})
    assert all(map(psutil.pid_exists, served.processes))


async def test_a_client_cannot_insert_tokens_into_an_answer(http: aiohttp.ClientSession) -> None:
    body = request_body(COMPLETIONS, GREEDY | {"model": MODEL, "return_token_ids": True})
    said = []
    theirs: list[Body] = [{"vllm_xargs": {"antefix_known_tokens": [5, 6]}}, {RESUME_FIELD: {}}]
    for more in [{}, *theirs]:
        async with http.post(COMPLETIONS, json=body | more) as answer:
            said.append((await answer.json())["choices"][0]["token_ids"])
    assert said[0] == said[1] == said[2]


async def test_a_killed_engine_cuts_the_answer_without_an_error_event(
    http: aiohttp.ClientSession, served: Served
) -> None:
    """The last test: this engine has served."""
    body = request_body(COMPLETIONS, GREEDY | {"model": MODEL, "max_tokens": 1900, "stream": True})
    headers = {RESUMABLE_HEADER: "1"}
    async with http.post(COMPLETIONS, json=body, headers=headers) as answer:
        came = await answer.content.readuntil(b"}\n\n")
        for process in served.processes:
            os.kill(process, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientPayloadError):
            while part := await answer.content.readany():
                came += part
    assert b"antefix-tokens" in came
    assert b"error" not in came
