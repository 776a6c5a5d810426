"""What a fleet file says of engines that hang."""

from __future__ import annotations

import pytest

from deployments.fleet.settings.hung_engine import HungEngine, is_restarted


@pytest.mark.parametrize(
    ("setting", "on_cpu", "restarts"),
    [
        (None, True, True),
        (None, False, False),
        ("suspect", True, False),
        ("suspect", False, False),
        ("restart", True, True),
        ("restart", False, True),
    ],
)
def test_on_gpus_an_engine_that_hangs_is_ended_only_where_the_fleet_file_says_so(
    setting: HungEngine | None, on_cpu: bool, restarts: bool
) -> None:
    assert is_restarted(setting, on_cpu) is restarts
