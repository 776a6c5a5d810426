"""What the routers are compared on: the workloads of `antefix bench`, and what separates a router
that knows from one that guesses. Pure.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from loadgen.planning import RequestForm, of_conversations
from loadgen.player import PlannedSession
from loadgen.workloads import WORKLOADS, Conversation, conversations

ANSWER_TOKENS = 8


class Event(Enum):
    """What happens between the first half of the conversations' turns and the second, which alone
    is measured. Nothing runs meanwhile: no request fails of it."""

    NONE = auto()
    ROUTER_RESTARTS = auto()
    CACHE_IS_RESET = auto()


@dataclass(frozen=True)
class PeerCase:
    """`lengths`: how long prompts are, of what the workload says; `rate` where that is not its
    own. `says`: what is not as usual; such a case separates exact from guessed."""

    workload: str
    lengths: float = 1.0
    rate: float | None = None
    says: str = ""
    gateways: int = 1
    event: Event = Event.NONE
    small_caches: bool = False

    def conversations(self, seed: int, requests: int) -> list[Conversation]:
        """About N requests."""
        workload = WORKLOADS[self.workload]
        seconds = requests / (self.rate or workload.rate)
        arrivals = workload.arrivals(seconds, self.rate)
        return conversations(self.workload, seed, seconds, arrivals, self.lengths)


CASES: Mapping[str, PeerCase] = {
    "multi_turn": PeerCase("multi_turn"),
    "shared_system": PeerCase("shared_system"),
    "hot_prefix": PeerCase("hot_prefix"),
    # of a length that the engines accept
    "long_documents": PeerCase("long_documents", lengths=0.25, rate=1.5),
    "short": PeerCase("short"),
    "no_reuse": PeerCase("no_reuse"),
    "agents": PeerCase("agents"),
    "cache_reset": PeerCase(
        "multi_turn",
        says="the cache of one engine is reset, and in a second run that of the other engine",
        event=Event.CACHE_IS_RESET,
    ),
    "router_restarted": PeerCase(
        "multi_turn", says="the router is restarted", event=Event.ROUTER_RESTARTS
    ),
    "two_gateways": PeerCase(
        "multi_turn", says="two processes of the router take turns", gateways=2
    ),
    "four_gateways": PeerCase(
        "multi_turn", says="four processes of the router take turns", gateways=4
    ),
    "small_caches": PeerCase(
        "multi_turn", says="the caches are much smaller than the traffic", small_caches=True
    ),
}


def halves(talks: Sequence[Conversation]) -> tuple[list[Conversation], list[Conversation]]:
    """Each conversation's first turns, and its others, which begin when the first did."""
    return (
        [dataclasses.replace(talk, turns=talk.turns[: len(talk.turns) // 2]) for talk in talks],
        [dataclasses.replace(talk, turns=talk.turns[len(talk.turns) // 2 :]) for talk in talks],
    )


def planned(
    talks: Sequence[Conversation], form: RequestForm, urls: Sequence[str], seed: int
) -> list[PlannedSession]:
    """Each request goes to one of the gateways at `urls`, by chance, the same for each router."""
    dice = random.Random(seed)
    return [
        dataclasses.replace(
            session,
            requests=[
                dataclasses.replace(request, path=f"{dice.choice(urls)}/v1{request.path}")
                for request in session.requests
            ],
        )
        for session in of_conversations(talks, form)
    ]
