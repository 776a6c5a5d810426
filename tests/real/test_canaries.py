"""No prompt and no key is where operators look: unique words go down every path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis

from cli.local import cluster
from tests.real.conftest import RunningFleet
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

CANARY = "zymurgy-quokka-7141"
CHAT, MODEL = "/v1/chat/completions", "smollm2-135m-instruct"
SAID = [{"role": "user", "content": f"Say {CANARY} and no other word."}]
TOOL = {
    "type": "function",
    "function": {
        "name": CANARY,
        "description": CANARY,
        "parameters": {"type": "object", "properties": {CANARY: {"type": "string"}}},
    },
}
ASKED = json.dumps({"a": CANARY})
CALL = {"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": ASKED}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "description": CANARY}
PICTURE = {"type": "image_url", "image_url": {"url": f"https://{CANARY}.example.com/a.png"}}


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"model": MODEL, "messages": SAID, "max_tokens": 4} | fields


ANSWERED = {
    "a chat": chat(),
    "a stream": chat(stream=True, stream_options={"include_usage": True}),
    "two answers with logprobs": chat(n=2, logprobs=True, top_logprobs=2),
    "a tool": chat(tools=[TOOL], tool_choice="auto"),
    "a call before": chat(
        messages=[
            *SAID,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": CANARY, "content": CANARY},
        ]
    ),
    "a schema": chat(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    ),
    "a stop string, a user, a salt": chat(stop=[CANARY], user=CANARY, cache_salt=CANARY),
    "a completion": ("/v1/completions", {"model": MODEL, "prompt": CANARY, "echo": True}),
    "a response": (
        "/v1/responses",
        {"model": MODEL, "input": CANARY, "instructions": CANARY, "max_output_tokens": 4},
    ),
    "tokens": ("/tokenize", {"model": MODEL, "prompt": CANARY}),
}
REFUSED = {
    "a number that is none": chat(temperature=CANARY),
    "messages that are none": chat(messages=CANARY),
    "a schema that is none": chat(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": CANARY}}
    ),
    "a picture": chat(messages=[{"role": "user", "content": [PICTURE]}]),
    "another model": chat(model=CANARY),
    "too long a prompt": chat(messages=[{"role": "user", "content": f"{CANARY} " * 2000}]),
    "embeddings of a model without": ("/v1/embeddings", {"model": MODEL, "input": CANARY}),
    "tokens that are none": ("/detokenize", {"model": MODEL, "tokens": [CANARY]}),
}
OF_HEADERS = {
    "tracestate": f"a={CANARY}",
    "x-session-id": CANARY,
    "cookie": f"a={CANARY}",
    "user-agent": CANARY,
    "x-request-id": f"{CANARY} is no id",
}


async def sent(http: aiohttp.ClientSession, root: str) -> dict[str, int]:
    """Down every path, in each case with the headers; what each was answered with."""
    told: dict[str, int] = {}
    for name, (path, body) in (ANSWERED | REFUSED).items():
        async with http.post(path, json=body, headers=OF_HEADERS) as answer:
            await answer.read()
            told[name] = answer.status
    async with http.post(CHAT, data=f'{{"{CANARY}": [', headers=json_type()) as answer:
        told["half a body"] = answer.status
    async with http.post(CHAT, json={CANARY: "a"}, headers={"x-antefix-policy": CANARY}) as answer:
        told["no such policy"] = answer.status
    async with http.get(f"/{CANARY}?{CANARY}") as answer:
        told["no such path"] = answer.status
    stranger = {"authorization": f"Bearer {CANARY}-{CANARY}"}
    async with aiohttp.ClientSession(root, headers=stranger) as other, other.get("/v1/models") as a:
        told["no such key"] = a.status
    return told


def json_type() -> dict[str, str]:
    return {"content-type": "application/json"}


def kept(client: redis.Redis) -> Iterator[bytes]:
    """All keys, and what they hold."""
    readers: dict[Any, Any] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"stream": client.xrange,
    }
    for key in client.scan_iter(count=1000):
        yield key
        kind = client.type(key)
        if kind != b"none":  # it has just expired
            yield repr(readers[kind](key)).encode()


def files_of(fleet: RunningFleet) -> list[Path]:
    state = fleet.home.state()
    assert state is not None
    folders = [fleet.home.logs, cluster.ray_logs(state)]
    return [file for folder in folders if folder for file in folder.rglob("*") if file.is_file()]


async def test_no_prompt_and_no_key_is_stored_or_logged(
    fleet: RunningFleet, http: aiohttp.ClientSession
) -> None:
    # each of them, so that a path that was never taken proves nothing
    told = await sent(http, fleet.root)
    assert {told[name] for name in ANSWERED} == {200}, told
    assert all(400 <= status < 500 for name, status in told.items() if name not in ANSWERED), told

    looked_at: dict[str, bytes] = {}
    decisions: list[Any] = []
    async with asyncio.timeout(60):
        while len(decisions) <= len(ANSWERED):  # they are reported a little later
            for path in ("/antefix/status", "/antefix/decisions", "/v1/models", "/openapi.json"):
                async with http.get(path) as answer:
                    assert answer.status == 200
                    looked_at[path] = await answer.read()
            decisions = json.loads(looked_at["/antefix/decisions"])["decisions"]
    for decision in decisions:
        path = f"/antefix/requests/{decision['request_id']}"
        async with http.get(path) as answer:
            looked_at[path] = await answer.read()
    async with aiohttp.ClientSession() as plain, plain.get(metrics_url(fleet)) as answer:
        looked_at["metrics"] = await answer.read()
        assert b"antefix_requests" in looked_at["metrics"]
    with redis.Redis.from_url(fleet.redis.url) as client:
        looked_at["redis"] = b"\n".join(kept(client))
        assert b"{afx:" in looked_at["redis"]
    ended = b'"request_id"'
    await until(lambda: any(ended in file.read_bytes() for file in files_of(fleet)))
    looked_at |= {str(file): file.read_bytes() for file in files_of(fleet)}

    secrets = {"the prompt": CANARY, "the key": fleet.api_key}
    secrets["the engines' secret"] = fleet.home.keys().engine_secret
    found = [
        f"{what} in {where}: {raw[max(0, at - 200) : at + 100]!r}"
        for where, raw in looked_at.items()
        for what, word in secrets.items()
        if (at := raw.find(word.encode())) >= 0
    ]
    assert not found


def metrics_url(fleet: RunningFleet) -> str:
    state = fleet.home.state()
    assert state is not None and state.metrics_url
    return state.metrics_url
