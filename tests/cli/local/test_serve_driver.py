"""What the process between `antefix` and Ray Serve waits for."""

from typing import Any

import pytest
from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatusOverview,
)

from cli.local import serve_driver
from deployments.fleet.applications import GATEWAYS_APPLICATION, application_of
from deployments.fleet.fleet import Fleet


class SlowServe:
    """As Ray Serve 2.60: its wait gives up after 60 s; here streams take longer to end."""

    def __init__(self) -> None:
        self.asked = 0
        self.shut_down = False
        self.deleted: set[str] = set()

    @property
    def applications(self) -> dict[str, Any]:
        self.asked += 1
        ours = {GATEWAYS_APPLICATION: None, application_of("engine"): None}
        return ours if self.asked < 10 else {}

    def status(self) -> "SlowServe":
        return self

    def delete(self, name: str, _blocking: bool = True) -> None:
        if _blocking:
            raise TimeoutError("Some of these applications weren't deleted after 60s")
        self.deleted.add(name)

    def shutdown(self) -> None:
        self.shut_down = True


def test_a_fleet_is_removed_when_its_last_stream_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowServe()
    monkeypatch.setattr(serve_driver, "serve", slow)
    monkeypatch.setattr(serve_driver, "_serve_is_running", lambda: True)
    monkeypatch.setattr(serve_driver, "POLL_SECONDS", 0.0)
    told: list[dict[str, Any]] = []
    serve_driver.remove({"shutdown_serve": True}, told.append)
    assert told == [{"event": "removed"}]
    assert slow.deleted == {"antefix", "antefix-engine"}
    assert slow.shut_down and slow.applications == {}


@pytest.mark.parametrize(
    ("status", "trigger", "message", "says"),
    [
        ("HEALTHY", "CONFIG_UPDATE_COMPLETED", "", ""),
        ("UPDATING", "CONFIG_UPDATE_STARTED", "1 to be scheduled", ""),
        ("UPDATING", "CONFIG_UPDATE_STARTED", "it failed to start 1 times", "it failed to start"),
        # of a replica that had started, which Ray Serve replaces
        ("UNHEALTHY", "HEALTH_CHECK_FAILED", "A replica's health check failed.", ""),
        ("UNHEALTHY", "REPLICA_STARTUP_FAILED", "no memory", "no memory"),
        ("DEPLOY_FAILED", "HEALTH_CHECK_FAILED", "too often", "too often"),
        ("DEPLOY_FAILED", "INTERNAL_ERROR", "no target", "no target"),
    ],
)
def test_up_waits_for_a_fleet_until_it_fails_permanently(
    status: str, trigger: str, message: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that died during an update was reported as the update's failure."""
    monkeypatch.setattr(serve_driver, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(serve_driver, "_pools", lambda fleet, ours: {})
    deployment = DeploymentStatusOverview(
        DeploymentStatus(status), DeploymentStatusTrigger(trigger), {}, message
    )
    of = ApplicationStatus.UNHEALTHY if status == "UNHEALTHY" else ApplicationStatus.DEPLOYING
    found = iter(
        [
            ApplicationStatusOverview(of, message, 0.0, {"engine": deployment}),
            ApplicationStatusOverview(ApplicationStatus.RUNNING, "", 0.0, {}),
        ]
    )
    monkeypatch.setattr(serve_driver, "_ours", lambda: {"antefix-engine": next(found)})
    told: list[dict[str, Any]] = []
    serve_driver._follow(
        Fleet.model_validate({"name": "a", "pools": {"b": {"model": "c"}}}), told.append
    )
    last = told[-1]
    assert last["event"] == ("failed" if says else "running")
    assert says in last.get("message", "")
