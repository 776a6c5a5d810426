"""A coding agent's session on real engines, whose turns go to four gateways in turn.

It has the same number of cached tokens as the same chat. An engine that is killed in the middle
of an answer costs nothing. With `-s` the first test prints the shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from deployments.models.model import embedded_model
from tests.coding_agent.bare_fleet import MODEL, BareFleet, running
from tests.coding_agent.session import TURNS, chat_request, message_request
from weights.speculation.drafts import first_layers

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
# Each is a tenant, so that neither finds what the other has had cached.
MESSAGES_KEY, CHAT_KEY = "sk-messages", "sk-chat"
MOST_DIFFERENCE = 0.001
LAYERS = 2
GREEDY = {"temperature": 0}
SHORT_ANSWER, LONG_ANSWER = 2, 120


@dataclass(frozen=True)
class Answered:
    """Tokens of one prompt: `prompt` and `cached` as its usage has them, the rest as headers do."""

    replica: str
    prompt: int
    cached: int
    header_prompt: int
    header_cached: int
    predicted: int
    text: str = ""
    output: int = 0
    request_id: str = ""


@dataclass(frozen=True)
class Share:
    """Cached tokens of a session, divided by those of its prompts."""

    engines: float
    predicted: float

    @classmethod
    def of(cls, answers: Sequence[Answered]) -> Share:
        prompts = sum(answer.prompt for answer in answers)
        return cls(
            sum(answer.cached for answer in answers) / prompts,
            sum(answer.predicted for answer in answers) / prompts,
        )


class Agent:
    """Clients of both APIs; each request goes to the next gateway."""

    def __init__(self, messages: Sequence[AsyncAnthropic], chats: Sequence[AsyncOpenAI]) -> None:
        self._messages = messages
        self._chats = chats
        self._sent = {"messages": 0, "chats": 0}

    async def message(
        self, turns: int, max_tokens: int = SHORT_ANSWER, kill: BareFleet | None = None
    ) -> Answered:
        """`kill`: where the engine is killed once the first of its text has come."""
        client = self._messages[self._next("messages")]
        async with client.messages.stream(
            model=MODEL, max_tokens=max_tokens, extra_body=GREEDY, **message_request(turns)
        ) as stream:
            headers = stream.response.headers
            async for _ in stream.text_stream:
                if kill is not None:
                    kill.kill(headers["x-antefix-replica"])
                    kill = None
            message = await stream.get_final_message()
        usage, text = message.usage, "".join(getattr(b, "text", "") for b in message.content)
        cached, created = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        prompt = usage.input_tokens + cached + created
        return _answered(headers, prompt, cached, text, usage.output_tokens)

    async def chat(self, turns: int) -> Answered:
        client = self._chats[self._next("chats")]
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            max_tokens=SHORT_ANSWER,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=GREEDY,
            **chat_request(turns),
        )
        (usage,) = [chunk.usage async for chunk in raw.parse() if chunk.usage]
        return _answered(
            raw.headers, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens
        )

    def _next(self, api: str) -> int:
        self._sent[api] += 1
        return (self._sent[api] - 1) % len(self._messages)


def _answered(headers: Any, prompt: int, cached: int, text: str = "", output: int = 0) -> Answered:
    return Answered(
        headers["x-antefix-replica"],
        prompt,
        cached,
        int(headers["x-antefix-prompt-tokens"]),
        int(headers["x-antefix-cached-tokens"]),
        int(headers["x-antefix-cached-tokens-predicted"]),
        text,
        output,
        headers["x-request-id"],
    )


@pytest.fixture(scope="module")
def fleet(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareFleet]:
    folder = tmp_path_factory.mktemp("agents")
    model = folder / "model"
    first_layers(embedded_model(lambda fraction, what: None), LAYERS, model)
    (model / "chat_template.jinja").write_text(TEMPLATE.read_text())
    pool = {
        "model": str(model),
        "slo": {"interactive": {"ttft_s": 60}},
        "engine_args": {
            "dtype": "float32",
            "max_model_len": 8192,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 512,
            "enforce_eager": True,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
            "enable_prompt_tokens_details": True,
        },
    }
    keys = {MESSAGES_KEY: "messages", CHAT_KEY: "chat"}
    with running(warm_python, pool, keys, folder) as fleet:
        yield fleet


@pytest_asyncio.fixture
async def agent(fleet: BareFleet) -> AsyncIterator[Agent]:
    async with AsyncExitStack() as stack:
        messages, chats = [], []
        for url in fleet.gateways:
            of_messages = AsyncAnthropic(base_url=url, api_key=MESSAGES_KEY, max_retries=0)
            of_chats = AsyncOpenAI(base_url=f"{url}/v1", api_key=CHAT_KEY, max_retries=0)
            messages.append(await stack.enter_async_context(of_messages))
            chats.append(await stack.enter_async_context(of_chats))
        yield Agent(messages, chats)


async def test_a_session_has_as_many_cached_tokens_as_the_same_chat(agent: Agent) -> None:
    messages, chats = [], []
    for turns in range(TURNS):
        messages.append(await agent.message(turns))
        chats.append(await agent.chat(turns))
    session, chat = Share.of(messages), Share.of(chats)
    print(f"\n{TURNS} prompts of {messages[0].prompt} to {messages[-1].prompt} tokens")
    print(f"cached: {session.engines:.2%} of the session, {chat.engines:.2%} of the chat")
    print(f"predicted: {session.predicted:.2%} of the session, {chat.predicted:.2%} of the chat")
    for answers in (messages, chats):
        assert [(a.prompt, a.cached) for a in answers] == [
            (a.header_prompt, a.header_cached) for a in answers
        ]
    assert [a.prompt for a in messages] == [a.prompt for a in chats]
    assert session.engines > 0.9
    assert session.engines == pytest.approx(chat.engines, abs=MOST_DIFFERENCE)
    assert session.predicted == pytest.approx(chat.predicted, abs=MOST_DIFFERENCE)
    assert session.predicted == pytest.approx(session.engines, abs=MOST_DIFFERENCE)


async def test_killing_an_engine_in_mid_answer_does_not_disturb_the_session(
    agent: Agent, fleet: BareFleet
) -> None:
    undisturbed = await agent.message(TURNS, LONG_ANSWER)
    assert undisturbed.output == LONG_ANSWER
    killed = await agent.message(TURNS, LONG_ANSWER, kill=fleet)
    assert (killed.text, killed.output) == (undisturbed.text, undisturbed.output)
    explained = await _explanation(fleet, killed.request_id)
    assert explained["replica"] == killed.replica
    assert explained["resumed"]["replica"] != killed.replica
    after = [await agent.message(TURNS + turns) for turns in range(1, 5)]
    assert {answer.replica for answer in after} == {explained["resumed"]["replica"]}
    assert Share.of(after).engines > 0.9


async def _explanation(fleet: BareFleet, request_id: str) -> dict[str, Any]:
    """Once it says who continued the answer, which is written afterwards."""
    headers = {"authorization": f"Bearer {MESSAGES_KEY}"}
    async with asyncio.timeout(60), aiohttp.ClientSession(headers=headers) as http:
        while True:
            async with http.get(f"{fleet.gateways[0]}/antefix/requests/{request_id}") as answer:
                if answer.status == 200:
                    explained: dict[str, Any] = await answer.json()
                    if "resumed" in explained:
                        return explained
            await asyncio.sleep(0.05)
