"""What git knows of the code that was measured, and that nothing is claimed where it knows none."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import measured
from benchmarks.harness.results import revision
from benchmarks.harness.results.revision import Revision


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=n@n", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path, file: str, text: str) -> str:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", file)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (folder := tmp_path / "checkout").mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "router/choice/cost.py", "1")
    return folder


def test_a_result_names_the_commit_and_whether_files_differ_from_it(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert revision.here(checkout) == Revision(head, dirty=False)
    (checkout / "router/choice/cost.py").write_text("2")
    assert revision.here(checkout) == Revision(head, dirty=True)


def test_the_page_that_a_benchmark_writes_does_not_make_its_result_dirty(checkout: Path) -> None:
    commit(checkout, "docs/benchmarks/scale.md", "1")
    commit(checkout, "README.md", "1")
    (checkout / "docs/benchmarks/scale.md").write_text("2")
    (checkout / "README.md").write_text("2")
    assert revision.here(checkout).dirty is False


def test_the_first_commit_that_changed_the_paths_is_named(checkout: Path) -> None:
    measured_at = git(checkout, "rev-parse", "HEAD")
    commit(checkout, "docs/routing.md", "1")
    assert revision.changed_since(measured_at, ["router"], checkout) is None
    first = commit(checkout, "router/choice/cost.py", "2")
    commit(checkout, "router/choice/cost.py", "3")
    assert revision.changed_since(measured_at, ["router"], checkout) == first[:7]
    assert revision.changed_since(measured_at, ["autoscaling"], checkout) is None


@pytest.mark.parametrize("file", ["page.py", "page.md", "plots.py"])
def test_a_page_rewritten_with_the_same_figures_makes_no_result_stale(
    file: str, checkout: Path
) -> None:
    measured_at = git(checkout, "rev-parse", "HEAD")
    commit(checkout, f"benchmarks/scale/{file}", "1")
    assert revision.changed_since(measured_at, ["benchmarks/scale"], checkout) is None
    code = commit(checkout, "benchmarks/scale/costs.py", "1")
    assert revision.changed_since(measured_at, ["benchmarks/scale"], checkout) == code[:7]


@pytest.mark.parametrize("name", ["a folder", "a folder inside a checkout", "no git"])
def test_without_a_git_history_no_revision_is_reported(
    name: str, tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = {"a folder": tmp_path, "a folder inside a checkout": checkout / "router"}.get(name)
    if name == "no git":
        monkeypatch.setenv("PATH", str(tmp_path))
    assert revision.here(root or checkout) == Revision(None, None)
    with pytest.raises(LookupError):
        revision.changed_since("abc", ["router"], root or checkout)


def test_a_shallow_clone_does_not_judge_a_commit_that_it_lacks(
    checkout: Path, tmp_path: Path
) -> None:
    measured_at = git(checkout, "rev-parse", "HEAD")
    commit(checkout, "router/choice/cost.py", "2")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{checkout}", "shallow")
    with pytest.raises(LookupError):
        revision.changed_since(measured_at, ["router"], tmp_path / "shallow")
    scale = {"scale": {"commit": measured_at}}
    assert measured.stale(scale, tmp_path / "shallow") == {}
    assert measured.stale(scale, checkout) == {"scale": git(checkout, "rev-parse", "HEAD")[:7]}


def test_a_result_of_another_branch_is_not_judged(checkout: Path) -> None:
    git(checkout, "switch", "-q", "-c", "other")
    elsewhere = commit(checkout, "router/choice/cost.py", "2")
    git(checkout, "switch", "-q", "main")
    with pytest.raises(LookupError):
        revision.changed_since(elsewhere, ["router"], checkout)


@pytest.mark.parametrize("name", measured.PATHS)
def test_the_paths_that_a_benchmark_measures_exist(name: str) -> None:
    missing = [path for path in measured.PATHS[name] if not (revision.ROOT / path).exists()]
    assert not missing
