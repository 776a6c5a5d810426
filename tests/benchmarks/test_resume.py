"""What answers that were gone on with are compared by."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness.load.client_answers import ClientAnswer, ask, joined
from benchmarks.resume import kinds, rounds, verdict
from benchmarks.resume.kinds import CHAT, COMPLETIONS, KINDS, RESPONSES, Kind
from benchmarks.resume.rounds import Disturbed, Prepared
from benchmarks.resume.verdict import figures, goals, judge
from cli.gateway.stream_client import Endpoint
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
ASKED = {"max_tokens": 5, "model": MODEL, "n": 1}


@pytest.fixture
def first() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
async def front(first: FakeEngine) -> AsyncIterator[Front]:
    async with gateway_before(first, FakeEngine("r2")) as front:
        yield front


async def answered(front: Front, path: str, **more: Any) -> ClientAnswer:
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    body = {**(chat if path == CHAT else {"prompt": "hello"}), **ASKED, **more}
    answer = ClientAnswer(asyncio.get_running_loop().time())
    await ask(answer, Endpoint("gateway", front.url, front.headers), path, body)
    return answer


@pytest.mark.parametrize("stream", [{}, STREAM])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_resumed_answer_is_compared_with_an_uninterrupted_one(
    front: Front, first: FakeEngine, path: str, stream: dict[str, Any]
) -> None:
    kind = Kind(path, stream)
    undisturbed = await answered(front, path, **stream), await answered(front, path, **stream)
    first.dies_after = 3
    front.sees(first)
    cut = await answered(front, path, **stream)
    kill = (cut.came_at[1] if stream else cut.began, cut.replica)
    resumed = {"resumed": {"predicted_s": 0.0}}
    found = judge(Disturbed(Prepared(kind, "it", {}, undisturbed), cut, [kill], resumed))
    assert found.hit and found.steady and not found.wrong
    assert (found.gap_s is not None) == (found.beyond_s is not None) == bool(stream)
    told = figures([found], {"resumed": 1})
    json.dumps(told)
    assert (told["hit"], told["wrong"]) == (1, {})
    assert [name for name, goal in goals([found], 1).items() if not goal["met"]] == []
    assert not goals([found], 2)["hit"]["met"]


async def test_the_verdict_names_what_an_answer_lacks(front: Front, first: FakeEngine) -> None:
    whole = await answered(front, CHAT, **STREAM)
    request = Prepared(Kind(CHAT, STREAM), "it", {}, (whole, whole))
    other = copy.deepcopy(whole)
    other.events = [event.replace("t3 ", "t4 ") for event in other.events]
    assert judge(Disturbed(request, other)).wrong == [verdict.TEXT]
    other.events = [
        e.replace('"completion_tokens": 5', '"completion_tokens": 6') for e in whole.events
    ]
    assert judge(Disturbed(request, other)).wrong == [verdict.USAGE]
    other.events = [
        event.replace('"index": 0', '"token_ids": [7], "index": 0') for event in whole.events
    ]
    assert verdict.TOKENS in judge(Disturbed(request, other)).wrong
    unsteady = Prepared(Kind(CHAT, STREAM), "it", {}, (whole, other))
    assert not judge(Disturbed(unsteady, other)).steady
    first.offers_resumable, first.dies_after = False, 2
    front.sees(first)
    (wrong,) = judge(Disturbed(request, await answered(front, CHAT, **STREAM))).wrong
    assert wrong == "not whole: engine_unavailable"
    two = [whole.events[0].replace("chatcmpl-", "chatcmpl-2"), *whole.events[1:]]
    (wrong,) = judge(Disturbed(request, ClientAnswer(0.0, events=two))).wrong
    assert "several answers" in wrong


def test_valid_json_must_stay_valid_after_resuming() -> None:
    def said(text: str) -> ClientAnswer:
        return ClientAnswer(0.0, body={"choices": [{"index": 0, "text": text}]})

    tower = json.dumps({"name": "a", "floors": list(range(20)), "tall": True})
    request = Prepared(KINDS["JSON schema"], "it", {}, (said(tower), said(tower)))
    assert judge(Disturbed(request, said(tower))).wrong == []
    assert judge(Disturbed(request, said(tower[:-1]))).wrong == [verdict.TEXT, verdict.INVALID]


def response(delta: str = "b", item: str = "msg_1", number: int = 3) -> list[str]:
    """The events of a response, as vLLM sends them."""
    about = {"id": "resp_1", "created_at": 7}
    output = [{"id": "msg_1", "content": [{"text": "ab"}]}]
    told: list[dict[str, Any]] = [
        {"type": "response.created", "response": about},
        {"type": "response.output_item.added", "item": {"id": "msg_1"}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "a"},
        {"type": "response.output_text.delta", "item_id": item, "delta": delta},
        {"type": "response.completed", "response": {**about, "output": output, "usage": {}}},
    ]
    numbers = [0, 1, 2, number, 4]
    return [
        f"event: {one['type']}\ndata: {json.dumps({**one, 'sequence_number': at})}"
        for one, at in zip(told, numbers, strict=True)
    ]


def test_the_events_of_a_response_add_up_to_its_last_event() -> None:
    assert joined(response())["output"][0]["content"] == [{"text": "ab"}]
    for wrong in ({"delta": "c"}, {"item": "msg_2"}, {"number": 4}):
        with pytest.raises(ValueError, match=r"event|item"):
            joined(response(**wrong))


class Actor:
    """As far as a round kills it."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine

    def kill(self) -> None:
        self.engine.break_off()
        self.engine.replica_id += "0"  # Ray Serve has another at its place


class Fleet:
    """A fleet of fake engines, as a round sees one."""

    def __init__(self, *engines: FakeEngine) -> None:
        self.actors = [Actor(engine) for engine in engines]

    async def is_whole(self) -> bool:
        return True

    async def status(self) -> dict[str, Any]:
        told = [{"replica": actor.engine.replica_id} for actor in self.actors]
        return {rounds.POOL: {"replicas": told}}

    def replicas(self, pool: str) -> list[Actor]:
        return self.actors

    async def id_of(self, actor: Actor, pool: str) -> str:
        return actor.engine.replica_id

    def redis_server(self) -> None:
        return None


async def test_a_round_kills_an_engine_while_it_answers(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [FakeEngine(f"r{n}", limit=16, model=kinds.MODEL) for n in (1, 2, 3)]
    for engine in engines:
        engine.token_delay_s = 0.005
    some = {
        name: Kind(KINDS[name].path, {**KINDS[name].body, "max_tokens": 40})
        for name in ("chat", "chat in one piece", "completion")
    }
    monkeypatch.setattr(rounds, "KINDS", some)
    monkeypatch.setattr(rounds, "BETWEEN_S", (0.0, 0.0))
    monkeypatch.setattr(rounds, "engine_core_of", lambda actor: actor)
    pool = {"served_model_name": kinds.MODEL, "slo": {"interactive": {"ttft_s": 120}}}
    async with gateway_before(*engines, redis_url=redis_url, pool=pool, retries=2) as front:
        endpoint = Endpoint("gateway", front.url, front.headers)
        fleet: Any = Fleet(*engines)
        killing = rounds.Rounds(fleet, endpoint, 3, speculates=True, seed=1)
        await killing.prepare()
        played = [one for number in range(2) for one in await killing.play(number)]
    found = [judge(one) for one in played]
    assert len(found) == 2 * rounds.CLIENTS
    assert [what for one in found for what in one.wrong] == []
    kills = [len(played[at].killed) for at in (0, rounds.CLIENTS)]
    assert kills[0] == 1 <= kills[1] <= 2
    assert any(one.hit for one in found)


def test_every_kind_of_request_is_different() -> None:
    bodies = {json.dumps([kind.path, kind.asked(1)]) for kind in KINDS.values()}
    stop = KINDS["stop string"]
    bodies.add(json.dumps(stop.stopping(stop.asked(1), "abcdefghijkl")))
    assert len(bodies) == len(KINDS)  # except for the string, it is a completion


@pytest.mark.real
@pytest.mark.parametrize("speculates", [False, True])
def test_vllm_accepts_every_kind_and_can_resume_it(speculates: bool) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    from deployments.engine.vllm.resuming.continuing import why_not

    read = {
        CHAT: ChatCompletionRequest,
        COMPLETIONS: CompletionRequest,
        RESPONSES: ResponsesRequest,
    }
    config = SimpleNamespace(
        speculative_config={} if speculates else None,
        watermark_config=None,
        model_config=SimpleNamespace(use_fp64_gumbel=False),
    )
    prompt = {"type": "token", "prompt_token_ids": [1]}
    for name, kind in KINDS.items():
        if kind.speculates or not speculates:
            params = read[kind.path](**kind.asked(1)).to_sampling_params(1000, {})
            assert why_not(params, prompt, config, kind.path == RESPONSES) is None, name
