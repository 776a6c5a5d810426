"""A real engine goes on with answers that were cut, and says what it would have said uncut.

Each answer is asked once undisturbed, then cut at several places and gone on with, as a gateway
does when an engine is lost: same body, same id, the tokens and the number of events so far. What
the client has then, of both, is compared with the undisturbed answer. Texts and lists are joined
over the events: vLLM makes one event of two tokens when nobody took the first in time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from deployments.wire.headers import (
    EVENTS_HEADER,
    HELD_HEADER,
    HELD_PATH,
    HOLD_HEADER,
    READER_HEADER,
    RESUMABLE_HEADER,
    RESUME_FIELD,
    TICKET_HEADER,
)
from tests.deployments.engine.vllm.resumable_engine import MODEL

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[4]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
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
}
Body = dict[str, Any]


@dataclass
class Answer:
    """What came, in order: `("tokens", choice, ids)` and `("event", text)`."""

    came: list[tuple[Any, ...]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def events(self) -> list[str]:
        return [one[1] for one in self.came if one[0] == "event"]

    @property
    def chunks(self) -> list[tuple[int, list[int]]]:
        return [(one[1], one[2]) for one in self.came if one[0] == "tokens"]

    @property
    def token_ids(self) -> dict[int, list[int]]:
        ids = defaultdict[int, list[int]](list)
        for choice, tokens in self.chunks:
            ids[choice] += tokens
        return dict(ids)


@dataclass(frozen=True)
class Served:
    url: str
    processes: list[int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("engine") / "log"
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "PYTHONHASHSEED": "0",
    }
    module = "tests.deployments.engine.vllm.resumable_engine"
    with (
        log.open("w") as vllm,
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(ENGINE_ARGS)],
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


async def ask(http: aiohttp.ClientSession, path: str, body: Body) -> Answer:
    """Of an engine that offers to go on with it."""
    headers = {
        RESUMABLE_HEADER: "1",
        "x-request-id": "the-request",
        "x-antefix-expected-cached": "0",
    }
    async with http.post(path, json={"model": MODEL} | body, headers=headers) as response:
        said = await response.read()
        assert response.status == 200, said
        assert response.headers[RESUMABLE_HEADER], said
        answer = Answer(headers=dict(response.headers))
    said, in_one_piece, whole = said.partition(b": antefix-answer ")
    for block in said.decode().split("\n\n")[:-1]:
        if block.startswith(": antefix-tokens "):
            choice, ids = block.split()[2:]
            answer.came.append(("tokens", int(choice), [int(token) for token in ids.split(",")]))
        elif not block.startswith(":"):
            answer.came.append(("event", block))
    if in_one_piece:
        length, _, text = whole.partition(b"\n\n")
        assert int(length) == len(text)
        answer.body = json.loads(text)
    return answer


def told(answer: Answer, cut: int) -> Body:
    """What a gateway has of it that got `cut` of its comments and events."""
    had = Answer(answer.came[:cut])
    first = next((event for event in answer.events if event.startswith("data: {")), None)
    created = json.loads(first.removeprefix("data: "))["created"] if first else 0
    return {
        "chunks": [list(chunk) for chunk in had.chunks],
        "events": len(had.events),
        "cached_tokens": int(answer.headers["x-antefix-cached-tokens"]),
        "created": created,
        "made_by": answer.headers[RESUMABLE_HEADER],
    }


def joined(events: list[str]) -> dict[str, Any]:
    """All that a client has after these events, whatever their boundaries; ids of tools aside."""
    assert events[-1] == "data: [DONE]"
    whole: dict[str, Any] = {"choices": {}, "heads": set()}
    for event in events[:-1]:
        said = json.loads(event.removeprefix("data: "))
        assert "error" not in said, said
        whole["heads"].add((said["id"], said["created"], said["model"]))
        whole["usage"] = said.get("usage") or whole.get("usage")
        for choice in said["choices"]:
            _join(whole["choices"].setdefault(choice["index"], {"events": 0}), choice)
    if usage := whole["usage"]:
        # whose cache it went into is the other engine's affair
        (usage.get("prompt_tokens_details") or {}).pop("created_cache_tokens", None)
    return whole


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name == "id":
            whole["ids"] = whole.get("ids", 0) + 1
        elif isinstance(value, str) and name not in ("finish_reason", "role", "type"):
            whole[name] = whole.get(name, "") + value
        elif isinstance(value, dict):
            _join(whole.setdefault(name, {}), value)
        elif name == "tool_calls":
            for call in value:
                _join(whole.setdefault(name, {}).setdefault(call["index"], {}), call)
        elif isinstance(value, list):
            whole[name] = whole.get(name, []) + value
        elif value is not None:
            whole[name] = value


def near(one: Any, other: Any) -> bool:
    """Equal, but for the last bits of logprobs: a prefill adds in another order than a decode."""
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, abs=1e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    return bool(one == other)


MESSAGES = [{"role": "user", "content": "Tell of the harbour, the ferry and the lighthouse. " * 6}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "floors": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        "tall": {"type": "boolean"},
    },
    "required": ["name", "floors", "tall"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "climb", "parameters": SCHEMA}}
SEEDED = {"temperature": 1, "seed": 11, "max_tokens": 18, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_tokens": 18, "ignore_eos": True}
# its language is one that no tokenizer has words for: characters of several tokens
SPLIT = {"structured_outputs": {"regex": "[\U0001f600-\U0001f64f]{6}"}}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
END_OF_TEXT = 2
STREAMS: dict[str, tuple[str, Body]] = {
    "greedy": (CHAT, GREEDY | USAGE),
    "seeded": (CHAT, SEEDED),
    "completion": (COMPLETIONS, SEEDED | USAGE),
    "two choices": (CHAT, SEEDED | {"n": 2}),
    "three completions": (COMPLETIONS, SEEDED | {"n": 3, "presence_penalty": 1.5}),
    "presence and frequency": (
        COMPLETIONS,
        GREEDY | {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    ),
    "repetition": (CHAT, GREEDY | {"repetition_penalty": 1.8}),
    "logprobs of a chat": (CHAT, SEEDED | {"logprobs": True, "top_logprobs": 3}),
    "logprobs of a completion": (COMPLETIONS, SEEDED | {"logprobs": 2}),
    "at least ten tokens": (
        COMPLETIONS,
        SEEDED | {"ignore_eos": False, "min_tokens": 10, "logit_bias": {str(END_OF_TEXT): 100}},
    ),
    "echo": (COMPLETIONS, SEEDED | {"echo": True}),
    "token ids": (COMPLETIONS, SEEDED | {"return_token_ids": True}),
    "schema": (
        CHAT,
        {
            "temperature": 1,
            "seed": 3,
            "max_tokens": 60,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "tower", "schema": SCHEMA},
            },
        },
    ),
    "regex": (CHAT, SEEDED | {"structured_outputs": {"regex": "(ab?c){3,9}[0-9]{4}"}}),
    "characters of several tokens": (CHAT, SEEDED | SPLIT | {"max_tokens": 40}),
    "named tool": (
        CHAT,
        {
            "temperature": 1,
            "seed": 5,
            "max_tokens": 60,
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "climb"}},
        },
    ),
    "required tool": (
        CHAT,
        {
            "temperature": 1,
            "seed": 5,
            "max_tokens": 80,
            "tools": [FUNCTION],
            "tool_choice": "required",
        },
    ),
}


def asked(path: str, body: Body) -> Body:
    prompt = MESSAGES if path == CHAT else MESSAGES[0]["content"]
    return {"messages" if path == CHAT else "prompt": prompt} | body


def cuts(answer: Answer, with_logprobs: bool) -> list[int]:
    """Places in it: behind its first comment and event, in the middle and one on, at its end."""
    places = len(answer.came)
    chosen = {1, 2, places // 3, places // 2, places // 2 + 1, places - 2, places - 1}
    if with_logprobs:  # those of a token whose events did not all come are lost
        after = {at: (answer.came[at - 1][0], answer.came[at][0]) for at in range(1, places)}
        whole = [at for at, (had, next_one) in after.items() if had == "event" != next_one]
        chosen = {*whole[:2], whole[len(whole) // 2], whole[-1], places - 1}
    return sorted(at for at in chosen if 0 < at < places)


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_goes_on_as_it_would_have(http: aiohttp.ClientSession, name: str) -> None:
    path, body = STREAMS[name]
    await goes_on(http, path, asked(path, body | {"stream": True}))


async def goes_on(http: aiohttp.ClientSession, path: str, body: Body) -> Answer:
    whole = await ask(http, path, body)
    assert len(whole.chunks) > 1
    for number, cut in enumerate(cuts(whole, "logprobs" in body)):
        if number % 2:  # else more than the prompt is cached
            await reset(http)
        rest = await ask(http, path, body | {RESUME_FIELD: told(whole, cut)})
        had = Answer(whole.came[:cut])
        both = Answer(had.came + rest.came)
        assert both.token_ids == whole.token_ids, cut
        assert near(joined(both.events), joined(whole.events)), cut
    return whole


async def test_more_than_the_prompt_may_be_cached(http: aiohttp.ClientSession) -> None:
    """An engine ends at once where it takes that for a prompt's share of the cache."""
    body = GREEDY | {"prompt": "Once", "max_tokens": 170, "presence_penalty": 0.5, "stream": True}
    whole = await ask(http, COMPLETIONS, body)
    cut = len(whole.came) - 20  # KV blocks of an engine on a CPU hold 128 tokens
    rest = await ask(http, COMPLETIONS, body | {RESUME_FIELD: told(whole, cut)})
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


@pytest.mark.parametrize("included", [False, True])
async def test_a_stop_string_is_found_across_the_cut(
    http: aiohttp.ClientSession, included: bool
) -> None:
    body = asked(COMPLETIONS, SEEDED | {"stream": True, "return_token_ids": True})
    whole = await ask(http, COMPLETIONS, body)
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in whole.events[:-1]]
    stop = "".join(texts)[len("".join(texts[:8])) - 1 :][:6]  # of more than one token
    stopped = await goes_on(
        http, COMPLETIONS, body | {"stop": [stop], "include_stop_str_in_output": included}
    )
    last = json.loads(stopped.events[-2][6:])["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    assert len(stopped.token_ids[0]) < SEEDED["max_tokens"]


async def test_a_bad_word_stays_away(http: aiohttp.ClientSession) -> None:
    body = asked(COMPLETIONS, GREEDY | {"stream": True})
    free = await ask(http, COMPLETIONS, body)
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in free.events[:-1]]
    bad = next(text.strip() for text in texts[4:] if text.strip())
    await goes_on(http, COMPLETIONS, body | {"bad_words": [bad]})


@pytest.mark.parametrize("name", ["greedy", "completion", "two choices", "schema", "named tool"])
async def test_an_answer_in_one_piece_goes_on_as_it_would_have(
    http: aiohttp.ClientSession, name: str
) -> None:
    path, body = STREAMS[name]
    body = asked(path, {key: value for key, value in body.items() if key != "stream_options"})
    whole = await ask(http, path, body)
    for cut in sorted({1, len(whole.came) // 2, len(whole.came) - 1, len(whole.came)}):
        rest = await ask(http, path, body | {RESUME_FIELD: told(whole, cut)})
        both = Answer(whole.came[:cut] + rest.came)
        assert both.token_ids == whole.token_ids, cut
        assert _without_ids(rest.body) == _without_ids(whole.body), cut


def _without_ids(said: Any) -> Any:
    body = copy.deepcopy(said)
    body["usage"].get("prompt_tokens_details", {}).pop("created_cache_tokens", None)
    for choice in body["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or ():
            assert call.pop("id")
    assert body.pop("created") > 0  # nobody has seen one of an answer in one piece
    return body


REFUSED: dict[str, tuple[str, Body]] = {
    "several prompts": (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 4}),
    "prompt logprobs": (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1, "max_tokens": 4}),
    "logprobs in one piece": (COMPLETIONS, {"prompt": "a", "logprobs": 1, "max_tokens": 4}),
    "responses": ("/v1/responses", {"input": "a", "max_output_tokens": 4}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_it_cannot_go_on_with_it_does_not_offer_and_refuses(
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
async def test_what_no_gateway_of_it_has_is_refused_and_ends_nothing(
    http: aiohttp.ClientSession, served: Served, wrong: Body, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": "Tell of the ferry.", "max_tokens": 4, "stream": stream}
    known: Body = {"chunks": [[0, [5]]], "events": 0, "cached_tokens": 0, "created": 1}
    await is_refused(http, COMPLETIONS, body | {RESUME_FIELD: known | wrong})
    assert all(map(psutil.pid_exists, served.processes))


async def test_a_client_cannot_put_tokens_in(http: aiohttp.ClientSession) -> None:
    body = asked(COMPLETIONS, GREEDY | {"model": MODEL, "return_token_ids": True})
    said = []
    theirs: list[Body] = [{"vllm_xargs": {"antefix_known_tokens": [5, 6]}}, {RESUME_FIELD: {}}]
    for more in [{}, *theirs]:
        async with http.post(COMPLETIONS, json=body | more) as answer:
            said.append((await answer.json())["choices"][0]["token_ids"])
    assert said[0] == said[1] == said[2]


RESPONSES = "/v1/responses"
SAID = {"input": MESSAGES[0]["content"], "temperature": 0, "max_output_tokens": 18}


async def held(
    http: aiohttp.ClientSession, path: str, body: Body, ticket: str
) -> aiohttp.ClientResponse:
    """A stream that is kept, should its reader be lost."""
    headers = {HOLD_HEADER: "60", TICKET_HEADER: ticket, "x-request-id": "the-request"}
    return await http.post(path, json={"model": MODEL, "stream": True} | body, headers=headers)


def text_of(stream: bytes) -> list[Any]:
    """What a client has of it, whatever the boundaries of its events, and its ids."""
    said: list[Any] = [""]
    for line in stream.decode().splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event.get("choices", ()):
                said[0] += choice.get("text") or choice.get("delta", {}).get("content") or ""
                said += [choice["finish_reason"]] if choice["finish_reason"] else []
            said[0] += event["delta"] if event.get("type", "").endswith("text.delta") else ""
    return said


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES, **GREEDY, "logprobs": True}),
        (COMPLETIONS, {"prompt": "The harbour", **SEEDED}),
        (RESPONSES, SAID),
    ],
)
async def test_a_stream_outlives_the_gateway_that_reads_it(
    http: aiohttp.ClientSession, path: str, body: Body
) -> None:
    undisturbed = await (await held(http, path, body, f"undisturbed {path}")).read()
    first = await held(http, path, body, f"cut {path}")
    assert first.status == 200, await first.text()
    had = await first.content.readuntil(b"\n\n")
    first.close()
    visit = {HELD_HEADER: f"cut {path}", READER_HEADER: "another", EVENTS_HEADER: "1"}
    async with http.post(HELD_PATH, headers=visit) as rest:
        assert rest.status == 200
        whole = await rest.read()
    assert whole.startswith(had) and len(whole) > len(had)
    assert text_of(whole) == text_of(undisturbed)
    async with http.post(HELD_PATH, headers={**visit, READER_HEADER: "once more"}) as again:
        assert await again.read() == whole


async def test_a_reader_that_leaves_on_purpose_stops_the_engine(
    http: aiohttp.ClientSession,
) -> None:
    body = {"messages": MESSAGES, **GREEDY, "max_tokens": 1500}
    stream = await held(http, CHAT, body, "left")
    await stream.content.readuntil(b"\n\n")
    assert await running(http) == 1
    stream.close()
    leaves = {HELD_HEADER: "left", READER_HEADER: "left"}
    async with http.delete(HELD_PATH, headers=leaves) as answer:
        assert answer.status == 204
    async with asyncio.timeout(60):
        while await running(http):  # noqa: ASYNC110  # each look is a request
            await asyncio.sleep(0.05)


async def running(http: aiohttp.ClientSession) -> float:
    async with http.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{")
    )


async def test_an_engine_that_is_killed_cuts_the_answer_without_a_word_of_its_own(
    http: aiohttp.ClientSession, served: Served
) -> None:
    """The last test: this engine has served."""
    body = asked(COMPLETIONS, GREEDY | {"model": MODEL, "max_tokens": 1900, "stream": True})
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
