"""What is counted of a process's containers."""

from __future__ import annotations

import asyncio
from collections import deque

from autoscaling.admission.fair_share import FairShare
from autoscaling.admission.waiting import Waiter, WaitingRoom
from benchmarks.soak.held_items import held_items
from deployments.fleet.fleet import GatewaySettings


class _Root:
    def __init__(self) -> None:
        self._shares = FairShare()
        self.rooms = {"first": WaitingRoom[int](9), "second": WaitingRoom[int](9)}
        self.itself = self
        self.line: asyncio.Queue[int] = asyncio.Queue()
        self.latest = deque([1, 2, 3], maxlen=3)
        self.settings = GatewaySettings()
        self.text = "not a container of anything"


def test_items_are_counted_by_what_holds_them() -> None:
    root = _Root()
    for tenant in ("red", "blue"):
        root._shares.charge(tenant, 1.0)
        root.rooms["first"].enter(Waiter(0, tenant, 1.0, 0.0))
    root.rooms["second"].enter(Waiter(0, "green", 1.0, 0.0))
    root.line.put_nowait(1)
    found = held_items(root)
    assert found["FairShare.had"] == 2
    assert found["WaitingRoom.queues"] == 3
    assert found["Root.rooms"] == 2
    assert found["Root.line"] == 1
    assert found["Root.latest"] == 3
    assert not any(holder.startswith(("GatewaySettings", "Root.settings")) for holder in found)
    assert found["no such holder"] == 0


def test_only_a_sample_of_a_large_containers_items_is_inspected() -> None:
    root = _Root()
    root.rooms = {str(number): WaitingRoom[int](9) for number in range(10_000)}
    for room in root.rooms.values():
        room.enter(Waiter(0, "red", 1.0, 0.0))
    found = held_items(root)
    assert found["Root.rooms"] == 10_000
    assert 0 < found["WaitingRoom.queues"] < 100
