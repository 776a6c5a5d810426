"""An interrupted benchmark resumes with the parts that are done, and with none of another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fairness.run import SharedPhase
from benchmarks.harness.load.offered_load import Phase
from benchmarks.harness.load.trace_player import ReplayedRequest
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.kept_parts import KeptParts
from benchmarks.harness.results.revision import Revision
from benchmarks.validation.results import LoadResult
from common.errors import Problem
from simulator import engine_profile
from simulator.engine_profile import EngineProfile

RULE = rules.of("overload")
REQUEST = ReplayedRequest(1.5, 200, ttft=0.25, replica="r1", sent_late=0.001)
SHIPPED = engine_profile.read(engine_profile.SHIPPED)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (4.77, float),
        (Phase(4.77, (REQUEST, replace(REQUEST, status=429, retry_after="3")), 1.0), Phase),
        (SharedPhase((REQUEST,), (REQUEST, REQUEST)), SharedPhase),
        (LoadResult((0.5, 1.0), 2, (0.001, 0.002)), LoadResult),
        (SHIPPED, EngineProfile),
    ],
)
def test_a_part_is_read_from_the_file_as_it_was_kept(
    part: object, kind: type[object], tmp_path: Path
) -> None:
    file = tmp_path / "kept"
    KeptParts(file, "overload", RULE).keep("11", part)
    kept = KeptParts(file, "overload", RULE)
    assert kept.get("11", kind) == part
    assert kept.get("12", kind) is None


def test_new_parts_are_added_to_earlier_parts(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    for seed in ("11", "12", "13"):
        KeptParts(file, "overload", RULE).keep(seed, float(seed))
    kept = KeptParts(file, "overload", RULE)
    assert [kept.get(seed, float) for seed in ("11", "12", "13")] == [11.0, 12.0, 13.0]


@pytest.mark.parametrize(
    ("benchmark", "commit", "rule"),
    [
        ("fairness", "c0ffee", RULE),
        ("overload", "other", RULE),
        ("overload", "c0ffee", replace(RULE, reported=(1, 2))),
        ("overload", "c0ffee", replace(RULE, settings={**RULE.settings, "phase_s": 1})),
    ],
)
def test_parts_of_a_different_measurement_are_rejected(
    benchmark: str, commit: str, rule: rules.Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept"
    monkeypatch.setattr(report, "STARTED", Revision("c0ffee", False))
    KeptParts(file, "overload", RULE).keep("11", 1.0)
    monkeypatch.setattr(report, "STARTED", Revision(commit, False))
    with pytest.raises(Problem, match="give another file to --keep"):
        KeptParts(file, benchmark, rule)


@pytest.mark.parametrize("content", ["", "no JSON\n", "[]\n"])
def test_a_file_with_other_content_is_refused_and_left_unchanged(
    content: str, tmp_path: Path
) -> None:
    file = tmp_path / "kept"
    file.write_text(content)
    with pytest.raises(Problem, match="give another file to --keep"):
        KeptParts(file, "overload", RULE)
    assert file.read_text() == content
