"""Where a model of the Hub lies that was downloaded before engines start."""

from pathlib import Path

from deployments.models.hub_snapshots import whole_snapshot
from tests.fakes.hub_cache import COMMIT, downloaded, marker_of

MODEL = "acme/chat-7b"


def snapshot_path(home: Path, revision: str | None = None, **more: str) -> Path | None:
    return whole_snapshot(MODEL, revision, {"HF_HOME": str(home), **more})


def test_a_marked_model_is_found_at_the_path_of_its_marker(tmp_path: Path) -> None:
    assert snapshot_path(tmp_path) is None
    folder = downloaded(tmp_path, MODEL)
    assert snapshot_path(tmp_path) == folder


def test_a_model_without_a_marker_is_not_used(tmp_path: Path) -> None:
    downloaded(tmp_path, MODEL)
    marker_of(tmp_path, MODEL).unlink()
    assert snapshot_path(tmp_path) is None


def test_a_marker_of_another_revision_is_ignored(tmp_path: Path) -> None:
    downloaded(tmp_path, MODEL)
    assert snapshot_path(tmp_path, "v2") is None
    assert snapshot_path(tmp_path, "main") is not None


def test_an_empty_marker_is_ignored(tmp_path: Path) -> None:
    """As the chart wrote it before it wrote commits."""
    downloaded(tmp_path, MODEL)
    marker_of(tmp_path, MODEL).write_text("")
    assert snapshot_path(tmp_path) is None


def test_a_marker_that_points_outside_the_cache_is_ignored(tmp_path: Path) -> None:
    downloaded(tmp_path, MODEL)
    marker_of(tmp_path, MODEL).write_text(f"../snapshots/{COMMIT}")
    assert snapshot_path(tmp_path) is None


def test_a_marker_in_a_cleared_cache_is_ignored(tmp_path: Path) -> None:
    downloaded(tmp_path, MODEL).rename(tmp_path / "elsewhere")
    assert snapshot_path(tmp_path) is None


def test_the_hubs_cache_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = downloaded(tmp_path, MODEL)
    (tmp_path / "hub").rename(tmp_path / "cache")
    moved = snapshot_path(tmp_path, HF_HUB_CACHE=str(tmp_path / "cache"))
    assert moved == tmp_path / "cache" / folder.relative_to(tmp_path / "hub")
