"""What the process between `antefix` and Ray Serve waits for."""

from typing import Any

import pytest

from cli.local import serve_driver
from deployments.fleet.applications import GATEWAYS_APPLICATION, application_of


class SlowServe:
    """As Ray Serve 2.60: a wait of its own gives up after 60 s; here streams take longer to end."""

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
