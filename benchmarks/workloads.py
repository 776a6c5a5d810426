"""The traffic that policies are compared on: who says what, and when. Pure.

Every workload is a list of conversations, made from a seed alone, so that each policy gets the
same words at the same times. Assistants' turns are written beforehand as well: what an engine
really answers then changes neither the next prompt nor its length.

    multi_turn      long private conversations: only a conversation's own past helps
    shared_system   a few applications, each with a long system prompt and one-off questions
    hot_prefix      one long prefix takes half of the traffic, the rest is private
    short           prompts shorter than a segment: nothing can be cached
    no_reuse        long prompts that share nothing

One word is one token of the model's tokenizer; lengths are in words, times in seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Rates are for two cores: about half of what they can compute if every prefix is found.
MULTI_TURN_RATE, TURNS, THINK_S = 3.0, 6, (0.5, 1.5)
SHARED_SYSTEM_RATE, APPLICATIONS = 4.0, 6
HOT_PREFIX_RATE, HOT_SHARE = 5.0, 0.5
SHORT_RATE = 8.0
NO_REUSE_RATE = 2.5

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
    role: str
    content: str


@dataclass(frozen=True)
class ChatTurn:
    """One request: the chat so far, sent `think_s` after the answer to the turn before."""

    messages: tuple[Message, ...]
    think_s: float = 0.0


@dataclass(frozen=True)
class Conversation:
    """Its first turn is sent at `arrives_at`, whatever else goes on. Names sort by arrival."""

    name: str
    arrives_at: float
    turns: tuple[ChatTurn, ...]


Maker = Callable[[random.Random, float], Iterator[tuple[float, tuple[ChatTurn, ...]]]]


def conversations(workload: str, seed: int, seconds: float) -> list[Conversation]:
    """The workload's traffic of about `seconds`, in order of arrival."""
    rng = random.Random(f"{workload}/{seed}")
    made = WORKLOADS[workload](rng, seconds)
    return [
        Conversation(f"{workload}-{seed}-{i:04}", arrives_at, turns)
        for i, (arrives_at, turns) in enumerate(made)
    ]


def multi_turn(rng: random.Random, seconds: float) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    # The last to come shall have time for most of their turns.
    window = max(seconds / 2, seconds - TURNS * sum(THINK_S) / 2)
    for arrives_at in _arrivals(rng, MULTI_TURN_RATE * seconds / TURNS, window):
        chat = [Message("system", _words(rng, 500, 800))]
        turns = []
        for turn in range(TURNS):
            chat.append(Message("user", _words(rng, 80, 180)))
            turns.append(ChatTurn(tuple(chat), rng.uniform(*THINK_S) if turn else 0.0))
            chat.append(Message("assistant", _words(rng, 60, 140)))
        yield arrives_at, tuple(turns)


def shared_system(
    rng: random.Random, seconds: float
) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    systems = [_words(rng, 1300, 1500) for _ in range(APPLICATIONS)]
    for arrives_at in _arrivals(rng, SHARED_SYSTEM_RATE * seconds, seconds):
        yield arrives_at, _once(rng.choice(systems), _words(rng, 60, 160))


def hot_prefix(rng: random.Random, seconds: float) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    hot = _words(rng, 1300, 1300)
    arrivals = _arrivals(rng, HOT_PREFIX_RATE * seconds, seconds)
    is_hot = [i < HOT_SHARE * len(arrivals) for i in range(len(arrivals))]
    rng.shuffle(is_hot)
    for arrives_at, chosen in zip(arrivals, is_hot, strict=True):
        prefix = hot if chosen else _words(rng, 250, 500)
        yield arrives_at, _once(prefix, _words(rng, 60, 160))


def short(rng: random.Random, seconds: float) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    for arrives_at in _arrivals(rng, SHORT_RATE * seconds, seconds):
        yield arrives_at, (ChatTurn((Message("user", _words(rng, 10, 60)),)),)


def no_reuse(rng: random.Random, seconds: float) -> Iterator[tuple[float, tuple[ChatTurn, ...]]]:
    for arrives_at in _arrivals(rng, NO_REUSE_RATE * seconds, seconds):
        yield arrives_at, (ChatTurn((Message("user", _words(rng, 500, 1200)),)),)


WORKLOADS: Mapping[str, Maker] = MappingProxyType(
    {
        "multi_turn": multi_turn,
        "shared_system": shared_system,
        "hot_prefix": hot_prefix,
        "short": short,
        "no_reuse": no_reuse,
    }
)


def _arrivals(rng: random.Random, count: float, window: float) -> list[float]:
    """Arrivals of a Poisson process, given that `count` (rounded) came within the window."""
    return sorted(rng.uniform(0.0, window) for _ in range(max(1, round(count))))


def _once(system: str, question: str) -> tuple[ChatTurn, ...]:
    return (ChatTurn((Message("system", system), Message("user", question))),)


def _words(rng: random.Random, at_least: int, at_most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(at_least, at_most)))
