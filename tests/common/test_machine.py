"""What a measurement says it was made on."""

from pathlib import Path

import pytest

from benchmarks.harness.results import report
from common import machine


@pytest.mark.parametrize(("says", "has"), [("1\n", True), ("0\n", False), (None, False)])
def test_the_machine_description_reports_whether_autogroups_are_enabled(
    says: str | None, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "AUTOGROUPS", setting := tmp_path / "sched_autogroup_enabled")
    if says is not None:
        setting.write_text(says)
    assert machine.machine()["autogroups"] is has
    assert (", with autogroups; Python" in report.machine_in_words()) is has
