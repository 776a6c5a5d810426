"""The prompts of the benchmark. Pure.

One word is about one token. Assistants' turns are generated beforehand, as in `loadgen.workloads`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.workloads import WORDS, ChatTurn, Conversation, Message

QUESTION_WORDS, ANSWER_WORDS = (20, 40), (8, 16)
HOT_PROMPTS = 2
# The requests of the mix that are played before those that count.
WARM_UP = 12


@dataclass(frozen=True)
class Pace:
    """How fast an engine computes prompts."""

    tokens_per_s: float
    words_per_s: float


def in_order(conversations: list[Conversation]) -> list[Conversation]:
    """Return the conversations in the order of their arrival."""
    return sorted(conversations, key=lambda one: one.arrives_at)


def words(rng: random.Random, count: int) -> str:
    """Return random words."""
    return " ".join(rng.choices(WORDS, k=count))


def alone(name: str, messages: Sequence[Message], arrives_at: float = 0.0) -> Conversation:
    """Return one request."""
    return Conversation(name, arrives_at, [ChatTurn(tuple(messages))])


class ReturningChats:
    """Conversations about a document each, in which a turn follows another on demand."""

    def __init__(self, seed: str, settings: Mapping[str, Any]) -> None:
        self._rng = random.Random(seed)
        counts = [
            self._rng.randint(*settings["prompt_words"]) for _ in range(settings["conversations"])
        ]
        self._chats = [
            [Message("user", f"{seed} {number}: {words(self._rng, count)}")]
            for number, count in enumerate(counts)
        ]

    def first(self) -> list[Conversation]:
        """Return the first turn of each conversation."""
        return [alone("first", chat) for chat in self._chats]

    def next(self, number: int) -> Conversation:
        """Return the next turn of a conversation."""
        chat = self._chats[number]
        chat.append(Message("assistant", words(self._rng, self._rng.randint(*ANSWER_WORDS))))
        chat.append(Message("user", words(self._rng, self._rng.randint(*QUESTION_WORDS))))
        return alone("next", chat)


class HotDocument:
    """A document that one request brings, and then many ask about."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """`name`: a document of another name shares nothing with it."""
        self._settings = settings
        # documents differ from their start on, but not in length
        text = words(random.Random("hot document"), settings["hot_words"])
        self._message = Message("user", f"{name}: {text}")

    def first(self) -> Conversation:
        """Return the request that brings it."""
        return alone("first", [self._message])

    def requests(self, name: str, rate: float | None) -> list[Conversation]:
        """Return requests at random times with a mean `rate` per second; None: all at once.

        Requests of the same name have the same questions and times.
        """
        rng, asked, at = random.Random(f"about {name}"), [], 0.0
        for number in range(self._settings["hot_requests"]):
            messages = [
                self._message,
                Message("assistant", words(rng, rng.randint(*ANSWER_WORDS))),
                Message("user", words(rng, rng.randint(*QUESTION_WORDS))),
            ]
            asked.append(alone(f"{number:03}", messages, at))
            at += rng.expovariate(rate) if rate is not None else 0.0
        return asked


class Mix:
    """Questions about documents that are hot, warm or new: in the cache, in a tier, or nowhere."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        rng = random.Random("documents")
        self._hot = [self._document(rng, f"hot {n}") for n in range(HOT_PROMPTS)]
        self._warm = [self._document(rng, f"warm {n}") for n in range(settings["warm_prompts"])]

    def _document(self, rng: random.Random, name: str) -> str:
        """Return a text whose length is log-uniform."""
        least, most = map(math.log, self._settings["mixed_words"])
        return f"{name}: {words(rng, round(math.exp(rng.uniform(least, most))))}"

    def documents(self) -> list[Conversation]:
        """Return a request for each document that is hot or warm."""
        return [alone("warm up", [Message("user", text)]) for text in [*self._warm, *self._hot]]

    def requests(self, seed: int, run: str, rate: float) -> list[Conversation]:
        """Return a run's requests, at random times with a mean `rate` of words per second.

        `run`: a name that makes its new documents differ from those of other runs. Runs of the same
        seed are otherwise equal.
        """
        rng, of = random.Random(seed), self._settings
        asked: list[list[Message]] = []
        total = 0
        for number in range(of["requests"]):
            kind = rng.random()
            if kind < of["cold_share"]:
                text = self._document(rng, f"{run} {number}")
            elif kind < of["cold_share"] + of["hot_share"]:
                text = rng.choice(self._hot)
            else:
                text = rng.choice(self._warm)
            messages = [
                Message("user", text),
                Message("assistant", words(rng, rng.randint(*ANSWER_WORDS))),
                Message("user", words(rng, rng.randint(*QUESTION_WORDS))),
            ]
            total += sum(len(message.content.split()) for message in messages)
            asked.append(messages)
        times = sorted(rng.uniform(0.0, total / rate) for _ in asked)
        return [
            alone(f"{number:03}", messages, at)
            for number, (messages, at) in enumerate(zip(asked, times, strict=True))
        ]


class Documents:
    """Questions about documents that are all asked about equally often."""

    def __init__(self, seed: int, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._rng = random.Random(f"documents {seed}")
        self._texts = [
            f"{seed} {number}: {words(self._rng, self._rng.randint(*settings['prompt_words']))}"
            for number in range(settings["replaced_documents"])
        ]

    def each(self) -> list[Conversation]:
        """Return a question about each document."""
        return [self._question(text) for text in self._texts]

    def questions(self, within_s: float) -> list[Conversation]:
        """Return questions at random times within this number of seconds."""
        count = round(within_s * self._settings["replaced_rate"])
        times = sorted(self._rng.uniform(0.0, within_s) for _ in range(count))
        return [self._question(self._rng.choice(self._texts), at) for at in times]

    def _question(self, text: str, arrives_at: float = 0.0) -> Conversation:
        question = words(self._rng, self._rng.randint(*QUESTION_WORDS))
        return alone("question", [Message("user", f"{text} {question}")], arrives_at)
