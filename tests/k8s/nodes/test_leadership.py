"""One controller writes at a time, whatever happens to the Lease."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes.leaderelection import leaderelection

from k8s.nodes import leadership
from k8s.nodes.leadership import LEASE_S, Leadership, impatient
from tests.k8s.warm_fleet import GROWING, LEASE, NAMESPACE, Fleet, warm_fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with warm_fleet(tmp_path) as fleet:
        yield fleet


def test_one_of_two_controllers_leads(fleet: Fleet) -> None:
    (first, leads), (_, waits) = fleet.controller("a"), fleet.controller("b")
    assert leads.renew()
    assert not waits.renew()
    assert leads.renew()
    assert (leads.holds(), waits.holds(), fleet.leader) == (True, False, "a")
    fleet.gateway.decided = GROWING
    first.step()
    assert fleet.placeholders == 2


def test_a_controller_that_does_not_lead_writes_nothing(fleet: Fleet) -> None:
    fleet.gateway.decided = GROWING
    (_, leads), (second, waits) = fleet.controller("a"), fleet.controller("b")
    assert leads.renew()
    assert not waits.renew()
    second.step()
    assert not fleet.writes


def test_a_lost_lease_ends_the_work(fleet: Fleet) -> None:
    controller, leads = fleet.controller("a")
    assert leads.renew()
    lease = fleet.api.get("Lease", LEASE, NAMESPACE)
    fleet.api.add({**lease, "spec": {**lease["spec"], "holderIdentity": "b"}})
    fleet.gateway.decided = GROWING
    assert not leads.renew()
    controller.step()
    assert not fleet.writes


def test_a_lease_that_was_not_renewed_ends_the_work(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, leads = fleet.controller()
    assert leads.renew()
    fleet.gateway.decided = GROWING
    later = time.monotonic() + LEASE_S
    monkeypatch.setattr(leadership, "time", SimpleNamespace(monotonic=lambda: later))
    controller.step()
    assert not fleet.writes


def test_a_lease_that_was_not_renewed_is_taken(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, gone), (_, waits) = fleet.controller("a"), fleet.controller("b")
    assert gone.renew()
    assert not waits.renew()
    later = time.time() + LEASE_S
    monkeypatch.setattr(leaderelection, "time", SimpleNamespace(time=lambda: later))
    assert waits.renew()
    assert fleet.leader == "b"


def test_a_lease_that_another_controller_changed_meanwhile_is_requested_again(fleet: Fleet) -> None:
    _, leads = fleet.controller()
    assert leads.renew()

    def another() -> None:
        fleet.api.before_write = lambda: None
        fleet.api.add(fleet.api.get("Lease", LEASE, NAMESPACE))

    fleet.api.before_write = another
    assert not leads.renew()
    assert leads.renew()


def test_a_request_to_kubernetes_without_an_answer_times_out(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = fleet.api.client()
        api.configuration.host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not Leadership(impatient(api), LEASE, NAMESPACE, "a").renew()
