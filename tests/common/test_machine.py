"""What a measurement says it was made on."""

from pathlib import Path

import pytest

from benchmarks.stand import report
from common import machine


@pytest.mark.parametrize(("says", "has"), [("1\n", True), ("0\n", False), (None, False)])
def test_it_says_whether_cores_are_shared_among_sessions_first(
    says: str | None, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "AUTOGROUPS", setting := tmp_path / "sched_autogroup_enabled")
    if says is not None:
        setting.write_text(says)
    assert machine.machine()["autogroups"] is has
    assert (", with autogroups; Python" in report.machine_in_words()) is has
