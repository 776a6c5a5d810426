"""The traffic of people and programs: conversations and their times. Pure.

Every workload is a list of conversations, generated from a seed, so that each server gets the same
words at the same times. Assistants' turns are generated beforehand too, so that an engine's real
answer changes neither the next prompt nor its length.

    multi_turn      long private conversations: only a conversation's own past is reusable
    shared_system   a few applications, each with a long system prompt and one-off questions
    hot_prefix      one long prefix takes half of the traffic, the rest is private
    short           prompts shorter than a segment: none can be cached
    no_reuse        long prompts without common parts
    long_documents  a long private document, and a few questions about it
    agents          a few agents, each with its tools; tool calls and results follow quickly

One word is about one token; lengths are in words, times in seconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from loadgen.arrivals import Arrivals, steady

# Rates are for two cores: about half of what they can compute if every prefix is cached.
TURNS, THINK_S = 6, (0.5, 1.5)
APPLICATIONS = 6
HOT_SHARE = 0.5
QUESTIONS, READ_S = 3, (1.0, 3.0)
AGENTS, STEPS, TOOL_S = 3, 6, (0.05, 0.3)

_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member "
    "law car city community name president team minute idea body information back parent face "
    "others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense"
)
WORDS = _VOCABULARY.split()


@dataclass(frozen=True)
class Message:
    """A message. `more`: other fields, such as tool calls."""

    role: str
    content: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content, **self.more}


@dataclass(frozen=True)
class ChatTurn:
    """One request: the chat so far, sent `think_s` after the answer to the previous turn.

    `answer_tokens`: the length of its answer, if it is known beforehand.
    """

    messages: tuple[Message, ...]
    think_s: float = 0.0
    tools: tuple[Mapping[str, Any], ...] = ()
    answer_tokens: int | None = None


@dataclass(frozen=True)
class Conversation:
    """A conversation. Its first turn is sent at `arrives_at`, regardless of others. Names sort by
    arrival."""

    name: str
    arrives_at: float
    turns: Sequence[ChatTurn]


class Words:
    """Random words. `scale`: factor on the lengths of a workload."""

    def __init__(self, rng: random.Random, scale: float) -> None:
        self._rng = rng
        self._scale = scale

    def __call__(self, at_least: int, at_most: int) -> str:
        count = self._rng.randint(at_least, at_most)
        return " ".join(self._rng.choices(WORDS, k=max(1, round(count * self._scale))))


class Maker(Protocol):
    """Generates conversations for arrivals, which are in order."""

    def __call__(
        self, rng: random.Random, words: Words, arrivals: Arrivals
    ) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]: ...


@dataclass(frozen=True)
class ChatWorkload:
    """A workload. `rate`: default requests per second; `turns` per conversation, which takes about
    `lasts_s`."""

    make: Maker
    rate: float
    turns: int = 1
    lasts_s: float = 0.0

    def arrivals(self, seconds: float, rate: float | None = None) -> Arrivals:
        """Return arrivals at this rate and duration that leave the last ones time for most of their
        turns."""
        window = max(seconds / 2, seconds - self.lasts_s)
        return steady((rate or self.rate) * seconds / self.turns, window)


def conversations(
    workload: str,
    seed: int,
    seconds: float,
    arrivals: Arrivals | None = None,
    scale: float = 1.0,
) -> list[Conversation]:
    """Return the workload's traffic of about `seconds`, in order of arrival."""
    rng, of = random.Random(f"{workload}/{seed}"), WORKLOADS[workload]
    made = of.make(rng, Words(rng, scale), arrivals or of.arrivals(seconds))
    return [
        Conversation(f"{workload}-{seed}-{i:04}", arrives_at, turns)
        for i, (arrives_at, turns) in enumerate(made)
    ]


def multi_turn(
    rng: random.Random, words: Words, arrivals: Arrivals
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    for arrives_at in arrivals(rng):
        chat = [Message("system", words(500, 800))]
        turns = []
        for turn in range(TURNS):
            chat.append(Message("user", words(80, 180)))
            turns.append(ChatTurn(tuple(chat), rng.uniform(*THINK_S) if turn else 0.0))
            chat.append(Message("assistant", words(60, 140)))
        yield arrives_at, tuple(turns)


def shared_system(
    rng: random.Random, words: Words, arrivals: Arrivals
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    systems = [words(1300, 1500) for _ in range(APPLICATIONS)]
    for arrives_at in arrivals(rng):
        yield arrives_at, _once(rng.choice(systems), words(60, 160))


def hot_prefix(
    rng: random.Random, words: Words, arrivals: Arrivals
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    hot = words(1300, 1300)
    times = arrivals(rng)
    is_hot = [i < HOT_SHARE * len(times) for i in range(len(times))]
    rng.shuffle(is_hot)
    for arrives_at, chosen in zip(times, is_hot, strict=True):
        prefix = hot if chosen else words(250, 500)
        yield arrives_at, _once(prefix, words(60, 160))


def short(
    rng: random.Random, words: Words, arrivals: Arrivals
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    for arrives_at in arrivals(rng):
        yield arrives_at, (ChatTurn((Message("user", words(10, 60)),)),)


def no_reuse(
    rng: random.Random, words: Words, arrivals: Arrivals
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    for arrives_at in arrivals(rng):
        yield arrives_at, (ChatTurn((Message("user", words(500, 1200)),)),)


def long_documents(
    rng: random.Random, words: Words, arrivals: Arrivals
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    for arrives_at in arrivals(rng):
        chat = [Message("user", f"{words(6000, 12000)}\n\n{words(15, 40)}")]
        turns = [ChatTurn(tuple(chat))]
        for _ in range(QUESTIONS - 1):
            chat += [Message("assistant", words(60, 140)), Message("user", words(15, 40))]
            turns.append(ChatTurn(tuple(chat), rng.uniform(*READ_S)))
        yield arrives_at, tuple(turns)


def agents(
    rng: random.Random, words: Words, arrivals: Arrivals
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    kinds = [(words(600, 900), _tools(words)) for _ in range(AGENTS)]
    for arrives_at in arrivals(rng):
        system, tools = rng.choice(kinds)
        chat = [Message("system", system), Message("user", words(40, 120))]
        turns = [ChatTurn(tuple(chat), tools=tools)]
        for step in range(1, STEPS):
            name = rng.choice(tools)["function"]["name"]
            arguments = json.dumps({"query": words(3, 10)})
            call = {"name": name, "arguments": arguments}
            calls = [{"id": f"call_{step}", "type": "function", "function": call}]
            chat += [
                Message("assistant", words(10, 40), {"tool_calls": calls}),
                Message("tool", words(40, 300), {"tool_call_id": f"call_{step}"}),
            ]
            turns.append(ChatTurn(tuple(chat), rng.uniform(*TOOL_S), tools))
        yield arrives_at, tuple(turns)


WORKLOADS: Mapping[str, ChatWorkload] = MappingProxyType(
    {
        "multi_turn": ChatWorkload(multi_turn, 3.0, TURNS, TURNS * sum(THINK_S) / 2),
        "shared_system": ChatWorkload(shared_system, 4.0),
        "hot_prefix": ChatWorkload(hot_prefix, 5.0),
        "short": ChatWorkload(short, 8.0),
        "no_reuse": ChatWorkload(no_reuse, 2.5),
        "long_documents": ChatWorkload(long_documents, 0.5, QUESTIONS, QUESTIONS * sum(READ_S) / 2),
        "agents": ChatWorkload(agents, 3.0, STEPS, STEPS * sum(TOOL_S) / 2),
    }
)


def _once(system: str, question: str) -> tuple[ChatTurn, ...]:
    return (ChatTurn((Message("system", system), Message("user", question))),)


def _tools(words: Words) -> tuple[Mapping[str, Any], ...]:
    query = {"type": "string", "description": words(5, 15)}
    parameters = {"type": "object", "properties": {"query": query}, "required": ["query"]}
    names = ("search", "read_file", "run_tests", "calculate", "send_message")
    return tuple(
        {
            "type": "function",
            "function": {"name": name, "description": words(20, 50), "parameters": parameters},
        }
        for name in names
    )
