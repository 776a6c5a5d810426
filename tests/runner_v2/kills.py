"""Engines under vLLM's model runner V2 are cut off in the middle of answers.

    python -m tests.runner_v2.kills --answers 500 [--noise 0.5] [--seed 1]
    python -m tests.runner_v2.kills --native --engine-args '{"dtype": "bfloat16"}'

Two replicas of a tiny model are behind a gateway. Each wave cuts all connections to one of them at
a random event of an answer, as the loss of its machine does; the other one continues. With --noise
logits depend on how many sequences are in a batch, as a GPU's last bits do, and the pool's `resume`
is `continued`; without, it is `exact`. With --native, vLLM runs as it is installed, on a GPU where
there is one, and the engine decides between the two. An answer has to be what it was before, alone.
Ends with one line of JSON: what was hit, and what was wrong, by kind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import secrets
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import uvloop

from benchmarks.harness.fleets import lone_gateway, own_redis
from benchmarks.harness.fleets.launched import Launched
from benchmarks.harness.load.client_answers import ClientAnswer, ask, near, texts
from cli.common.gateway_client import GatewayClient, GatewayError
from cli.gateway.stream_client import Endpoint
from cli.local.ports import LOOPBACK, free_ports
from deployments.fleet.fleet import Fleet
from deployments.gateway.gateway import Gateway
from deployments.gateway.gateway_parts import Secrets
from tests.runner_v2 import tiny_models
from tests.runner_v2.environment import V2_ASYNC, environment
from tests.runner_v2.interpreter import NOISE
from tests.runner_v2.kill_kinds import KINDS, Kind

START_S = 240.0
EXPLAINED_S = 60.0
CLIENTS = 8
MODEL, POOL = "tiny", "engine"
ENGINE_ARGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 2 * CLIENTS,
    # the first prompts take several steps
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 64 << 20,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    # a random model ends no whitespace
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}


@dataclass(frozen=True)
class Request:
    """`alone`: its answer without other requests, and without a cut."""

    name: str
    kind: Kind
    body: Mapping[str, Any]
    alone: ClientAnswer


@dataclass(frozen=True)
class Judged:
    """`wrong`: in words. `hit`: another engine continued it. `differs`: in its tokens or text."""

    name: str
    hit: bool
    labelled: bool
    differs: bool
    wrong: Sequence[str]


def judge(request: Request, answer: ClientAnswer, hit: bool) -> Judged:
    """What must hold for an answer whatever its tokens are."""
    labelled = answer.resumed == "continued"
    try:
        whole = answer.whole if answer.code is None else None
        reason = answer.code
    except (ValueError, KeyError, IndexError) as error:
        whole, reason = None, repr(error)
    if whole is None:
        return Judged(request.name, hit, labelled, True, [f"not whole: {reason}"])
    expected, wrong = request.alone.whole, []
    said = whole["said"]
    if "choices" in said and not _is_valid(request.kind, said):
        wrong.append(f"not valid: {texts(said)}")
    usage, before = whole["usage"], expected["usage"]
    key = "input_tokens" if "input_tokens" in usage else "prompt_tokens"
    if usage.get(key) != before.get(key) or not _counts_its_tokens(usage, answer):
        wrong.append(f"wrong usage: {usage}")
    differs = answer.token_ids != request.alone.token_ids or not near(said, expected["said"])
    return Judged(request.name, hit, labelled, differs, wrong)


def _is_valid(kind: Kind, said: Mapping[str, Any]) -> bool:
    choices = said["choices"]
    each = choices.values() if isinstance(choices, dict) else choices
    cut = [kind.may_be_cut and choice.get("finish_reason") == "length" for choice in each]
    return all(is_cut or kind.is_valid(text) for is_cut, text in zip(cut, texts(said), strict=True))


def _counts_its_tokens(usage: Mapping[str, Any], answer: ClientAnswer) -> bool:
    """A response has no ids."""
    ids = answer.token_ids
    return not ids or usage["completion_tokens"] == sum(map(len, ids.values()))


@dataclass(frozen=True)
class Rig:
    """A running gateway in this process; `engines`: URL of each replica's own server."""

    gateway: Gateway
    endpoint: Endpoint
    client: GatewayClient
    engines: Mapping[str, str]

    def cut(self, replica: str) -> int:
        """Shut down every connection of this process to that replica; how many there were."""
        port = urlsplit(self.engines[replica]).port
        found = [
            connection.fd
            for connection in psutil.Process().net_connections("tcp")
            if connection.raddr and connection.raddr.port == port and connection.fd > 0
        ]
        for fd in found:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as same:
                same.shutdown(socket.SHUT_RDWR)
        return len(found)

    async def was_hit(self, answer: ClientAnswer) -> bool:
        """As its explanation has it, which is there a moment after the answer."""
        while True:
            with contextlib.suppress(GatewayError):
                found = await asyncio.to_thread(self.client.explanation, answer.request_id)
                if found["outcome"] is not None:  # otherwise it is of one under way
                    return bool(found.get("resumed"))
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def running(
    folder: Path, noise: float, native: bool, engine_args: Mapping[str, Any]
) -> AsyncIterator[Rig]:
    tiny_models.make(folder)
    metrics_port, port = free_ports(2)
    pool = {
        "model": str(folder / "target"),
        "served_model_name": MODEL,
        "engine_args": {**ENGINE_ARGS, **engine_args},
        "resume": None if native else "continued" if noise else "exact",
    }
    fleet = Fleet.model_validate(
        {
            "name": "kills",
            "metrics": {"port": metrics_port},
            "redis": {"lookup_budget_ms": 50},
            "gateway": {"port": port, "request_timeout_s": 300, "retries": 2},
            "pools": {POOL: pool},
        }
    )
    (shim := folder / "shim").mkdir()
    variables = {
        **(os.environ if native else environment(V2_ASYNC, shim)),
        NOISE: str(noise),
        "ANTEFIX_METRICS_FOLDER": str(folder / "metrics"),
    }
    key, secret = secrets.token_hex(16), secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(own_redis.running(folder))
        engines = []
        for name in ("r0", "r1"):
            asked = {
                "fleet": fleet.model_dump(mode="json", exclude_unset=True),
                "replica_id": name,
                "secret": secret,
                "redis_url": redis.url,
            }
            command = [sys.executable, "-m", "benchmarks.harness.fleets.lone_replica"]
            engines.append(Launched(command, folder / f"{name}.log", variables, asked))
            stack.callback(engines[-1].stop)
        for engine in engines:
            engine.said(START_S)
        known = Secrets({key: "drill"}, secret, redis.url)
        async with lone_gateway.serving(fleet, known, len(engines), START_S) as gateway:
            loads = lone_gateway.pool_of(gateway).scheduler.board.loads()
            url = f"http://{LOOPBACK}:{port}"
            endpoint = Endpoint("gateway", url, {"authorization": f"Bearer {key}"})
            urls = {name: load.url for name, load in loads.items()}
            yield Rig(gateway, endpoint, GatewayClient(url, key), urls)


class Waves:
    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._random = random.Random(seed)
        self._requests: dict[tuple[str, int], Request] = {}

    async def play(self) -> list[Judged]:
        """One wave: an engine is cut off in the middle of one answer of several."""
        numbered = [(name, number) for name in KINDS for number in (1, 2)]
        chosen = [await self._asked(*one) for one in self._random.sample(numbered, CLIENTS)]
        answers = [ClientAnswer(0.0) for _ in chosen]
        rig = self._rig
        tasks = [
            asyncio.create_task(ask(answer, rig.endpoint, request.kind.path, request.body))
            for request, answer in zip(chosen, answers, strict=True)
        ]
        streams = [answer for r, answer in zip(chosen, answers, strict=True) if r.kind.streams]
        victim, after = self._random.choice(streams), self._random.randrange(1, 18)
        while len(victim.events) < after and math.isinf(victim.ended):  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.002)
        if victim.replica:
            rig.cut(victim.replica)
        await asyncio.gather(*tasks)
        async with asyncio.timeout(EXPLAINED_S):
            hits = await asyncio.gather(*map(rig.was_hit, answers))
        return [judge(*one) for one in zip(chosen, answers, hits, strict=True)]

    async def _asked(self, name: str, number: int) -> Request:
        """Ask it alone, the first time that it is chosen."""
        if (known := self._requests.get((name, number))) is not None:
            return known
        kind = KINDS[name]
        body, alone = kind.asked(MODEL, number), ClientAnswer(0.0)
        await ask(alone, self._rig.endpoint, kind.path, body)
        if alone.code is not None:
            raise RuntimeError(f"{name}: {alone.code} {alone.body}")
        self._requests[name, number] = Request(name, kind, body, alone)
        return self._requests[name, number]


def figures(found: Sequence[Judged]) -> dict[str, Any]:
    hit = [one for one in found if one.hit]
    return {
        "answers": len(found),
        "hit": len(hit),
        "hit_by_kind": dict(sorted(Counter(one.name for one in hit).items())),
        "wrong": dict(Counter(f"{one.name}: {what}" for one in found for what in one.wrong)),
        "hit_and_other_tokens": sum(one.differs for one in hit),
        "of_these_not_labelled": sum(one.differs and not one.labelled for one in hit),
        "labelled": sum(one.labelled for one in found),
        "other_tokens_though_not_hit": sum(one.differs and not one.hit for one in found),
    }


async def played(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Send waves until this number of answers was hit."""
    found: list[Judged] = []
    async with running(folder, asked.noise, asked.native, asked.engine_args) as rig:
        waves = Waves(rig, asked.seed)
        while sum(one.hit for one in found) < asked.answers:
            found += await waves.play()
            print(json.dumps(figures(found)), file=sys.stderr, flush=True)
    return {"noise": asked.noise, "seed": asked.seed, "native": asked.native, **figures(found)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("tests.runner_v2.kills", description=__doc__)
    parser.add_argument("--answers", type=int, default=500, help="to be hit")
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation, in logits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--native", action="store_true", help="vLLM as it is installed")
    parser.add_argument("--engine-args", type=json.loads, default={}, metavar="JSON")
    return parser.parse_args()


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="afx-kills-") as folder:
        print(json.dumps(uvloop.run(played(Path(folder), options))))


if __name__ == "__main__":
    main()
