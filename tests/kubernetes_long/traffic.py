"""Traffic through the gateways' Service while something happens to the fleet.

The clients run in a pod of a separate namespace, on the first node, which no test removes. Times
are of the nodes' clock, which on one machine is this one's.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path

from tests.helm.helm import Object
from tests.kubernetes.api import name_of, until
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.visitors import leave, visitor, within

POD = "clients"
CLIENT = Path(__file__).with_name("asking_client.py").read_text()
OUTCOMES = "/tmp/outcomes"
# One that is under way when the traffic stops has this long to end.
REQUEST_S = 90.0


@dataclass(frozen=True)
class Outcome:
    """Times are seconds of the clock; `ttft_s` is None where no token came."""

    began: float
    took_s: float
    ttft_s: float | None
    status: int
    whole: bool
    why: str
    client: str
    replica: str | None
    model: str | None


class Traffic:
    def __init__(self) -> None:
        self._log = ""

    def outcomes(self, since: float = 0.0) -> list[Outcome]:
        """Return the outcomes of requests that began at `since` or later, sorted by their ends."""
        said = self._log or self._read()
        ended = [json.loads(line) for line in said.splitlines(True) if line.endswith("\n")]
        names = Outcome.__dataclass_fields__
        return [
            Outcome(**{name: one.get(name) for name in names})
            for one in ended
            if one["began"] >= since
        ]

    def end(self) -> None:
        """No more is heard of it: its pod goes."""
        self._log = self._read()
        print(*self._log.splitlines()[-3:], sep="\n")

    def _read(self) -> str:
        # not its log, of which a kubelet keeps no more than it likes
        return within(POD, "cat", OUTCOMES)

    def flow(self, more: int = 6) -> None:
        """Wait until N more have been answered."""
        now = time.time()
        until(
            f"{more} more answers",
            lambda: sum(o.whole for o in self.outcomes(now)) >= more,
            within_s=300,
        )

    def replicas(self, since: float = 0.0) -> set[str]:
        """The engines that answered what began since."""
        return {one.replica for one in self.outcomes(since) if one.whole and one.replica}

    def models(self, since: float = 0.0) -> set[str]:
        """The models that answered what began since."""
        return {one.model for one in self.outcomes(since) if one.whole and one.model}

    def heard(self, since: float = 0.0) -> set[str]:
        """The clients whose request ended after that."""
        return {one.client for one in self.outcomes() if one.began + one.took_s >= since}

    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes() if not outcome.whole]

    def pause_s(self) -> float:
        """The longest time in which no request came to a whole end."""
        ends = sorted(o.began + o.took_s for o in self.outcomes() if o.whole)
        return max((b - a for a, b in pairwise(ends)), default=0.0)

    def tell(self, pause_at_most_s: float | None = None) -> None:
        """How the requests of a test ended, among what was measured."""
        all_of = self.outcomes()
        measured("requests", len(all_of), "requests")
        refused = [outcome for outcome in all_of if outcome.status == HTTPStatus.TOO_MANY_REQUESTS]
        measured("rejected with 429", len(refused), "requests")
        measured("failed", len(self.failed()) - len(refused), "requests")
        measured("longest pause", self.pause_s(), "s", pause_at_most_s)
        measured("slowest", max((o.took_s for o in all_of), default=0.0), "s")
        print(Counter((o.client, o.status, o.whole, o.why[:160]) for o in all_of))


def are_new(traffic: Traffic, old: set[str]) -> bool:
    """Whether none of the old replicas has answered for a while, and others have."""
    answered = traffic.replicas(since=time.time() - 30)
    return bool(answered) and not answered & old


@contextmanager
def traffic(
    url: str, key: str, model: str, image: str, clients: int, every_s: float
) -> Iterator[Traffic]:
    """Flows when the block begins; has ended, with every outcome known, when it ends."""
    asking = f'python -c "$0" "$@" > {OUTCOMES}'
    command = ["bash", "-c", asking, CLIENT, url, key, model, str(clients), str(every_s)]
    visitor(POD, image, command, nodeName=names_of_nodes()[0])
    flowing = Traffic()
    try:
        flowing.flow()
        yield flowing
        flowing.flow()
        # what was under way ends; requests that begin now are not waited for
        now = time.time()
        until(
            "the end of what was under way",
            lambda: flowing.heard(since=now) == flowing.heard(),
            within_s=REQUEST_S * 2,
        )
    finally:
        flowing.end()
        leave(POD)


def nodes() -> list[Object]:
    """Those that take pods of Antefix."""
    found: list[Object] = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    control_plane = "node-role.kubernetes.io/control-plane"
    return [
        node
        for node in found
        if control_plane not in {taint["key"] for taint in node["spec"].get("taints", ())}
    ]


def names_of_nodes() -> list[str]:
    return sorted(name_of(node) for node in nodes())


def names_of_images() -> list[set[str]]:
    """Return the names of each node's images; one whose name has gone to a newer one has none."""
    return [
        {name for image in node["status"]["images"] for name in image["names"] or ()}
        for node in nodes()
    ]
