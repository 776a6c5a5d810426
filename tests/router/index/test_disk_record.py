"""Which segments can be read from the files of a disk tier, after restarts and crashes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from router.index import disk_record
from router.index.cached_blocks import CachedBlocks, Tier
from router.index.disk_record import BLOCK_SUFFIX, SUFFIX, DiskRecord, file_name, names_key
from tests.router.prefix_caches import HASHER, MODEL, REVISION, Engine, Prompt, Scene, scenes

KEY = names_key("secret")
TIERS = (Tier.HOST, Tier.DISK)
BLOCK_TOKENS, SEGMENT_TOKENS = 2, 4
PROMPT = Prompt(tuple(range(12)))  # three segments of two blocks
SEGMENTS = PROMPT.keys(SEGMENT_TOKENS)


@pytest.fixture
def begun(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], DiskRecord]:
    """Begins the record of one more replica."""

    def begin() -> DiskRecord:
        record = DiskRecord(tmp_path, KEY)
        request.addfinalizer(record.close)
        return record

    return begin


def write(folder: Path, hash_: bytes) -> Path:
    """The file of a block, where vLLM would write it."""
    name = file_name(hash_, KEY)
    path = folder / "model_r0" / name[:3] / f"{name}{BLOCK_SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def written(record: DiskRecord, folder: Path, prompt: Prompt = PROMPT) -> list[Path]:
    """An engine has computed the prompt, and has written all of its blocks."""
    engine = Engine(BLOCK_TOKENS)
    cached = CachedBlocks(
        HASHER, MODEL, REVISION, SEGMENT_TOKENS, tiers=TIERS, on_written=record.note
    )
    cached.apply(engine.request(prompt))
    for index in range(len(engine.blocks(prompt))):
        cached.apply([*engine.offload(0), *engine.offload(0), *engine.write(index)])
    record.flush()
    return [write(folder, hash_) for hash_ in engine.written]


def test_a_replica_that_starts_knows_what_an_earlier_one_wrote(
    begun: Callable[[], DiskRecord], tmp_path: Path
) -> None:
    first = begun()
    files = written(first, tmp_path)
    assert len(files) == 6
    first.close()
    later = begun()
    assert later.read().segments == SEGMENTS
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1  # merged


def test_replicas_that_share_a_folder_know_each_others_files(
    begun: Callable[[], DiskRecord], tmp_path: Path
) -> None:
    one, other = begun(), begun()
    written(one, tmp_path)
    assert other.read().segments == one.read().segments == SEGMENTS
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 2


def test_what_was_removed_is_reported_once(begun: Callable[[], DiskRecord], tmp_path: Path) -> None:
    record = begun()
    files = written(record, tmp_path)
    assert record.read().gone == []
    files[2].unlink()
    assert record.read().gone == [Engine(BLOCK_TOKENS).blocks(PROMPT)[2][0]]
    assert record.read().gone == []


@pytest.mark.parametrize("missing", range(6))
def test_a_missing_file_hides_its_segment_and_all_after_it(
    begun: Callable[[], DiskRecord], tmp_path: Path, missing: int
) -> None:
    record = begun()
    written(record, tmp_path)[missing].unlink()
    assert record.read().segments == SEGMENTS[: missing // 2]


def test_lines_that_a_crash_cut_or_damaged_are_ignored(
    begun: Callable[[], DiskRecord], tmp_path: Path
) -> None:
    first = begun()
    written(first, tmp_path)
    first.close()
    (log,) = tmp_path.glob(f"*{SUFFIX}")
    lines = log.read_text().splitlines(keepends=True)
    name, before, key, _ = lines[-1].split(" ")
    damaged = f"no line\n{name} {before} {key} x\n{name} {before} {key}0 0\n{name} - - 0\n"
    log.write_text(damaged + "".join(lines[:-1]) + lines[-1][:-1])
    assert begun().read().segments == SEGMENTS[:2]


def test_another_secret_gives_other_names(tmp_path: Path) -> None:
    assert file_name(b"block", KEY) != file_name(b"block", names_key("another"))
    with pytest.raises(ValueError, match="engine secret"):
        names_key("")


def test_no_hash_of_a_block_is_in_the_folder(
    begun: Callable[[], DiskRecord], tmp_path: Path
) -> None:
    record = begun()
    written(record, tmp_path)
    (log,) = tmp_path.glob(f"*{SUFFIX}")
    engine = Engine(BLOCK_TOKENS)
    assert not any(hash_.hex() in log.read_text() for hash_, _ in engine.blocks(PROMPT))
    assert oct(log.stat().st_mode & 0o777) == "0o600"


def test_a_folder_that_was_removed_is_made_again(
    begun: Callable[[], DiskRecord], tmp_path: Path
) -> None:
    record = begun()
    written(record, tmp_path)
    shutil.rmtree(tmp_path)
    assert record.read().segments == []
    written(record, tmp_path)
    assert record.read().segments == SEGMENTS
    assert oct(tmp_path.stat().st_mode & 0o777) == "0o700"


def test_a_line_is_kept_while_it_cannot_be_written(
    begun: Callable[[], DiskRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = begun()

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space"):
            written(record, tmp_path)
    record.flush()
    for hash_, _ in Engine(BLOCK_TOKENS).blocks(PROMPT):
        write(tmp_path, hash_)
    assert record.read().segments == SEGMENTS


def test_a_long_log_is_written_again_without_the_files_that_are_gone(
    begun: Callable[[], DiskRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_record, "MANY_LINES", 4)
    record = begun()
    for tokens in range(20, 60, 10):
        for path in written(record, tmp_path, Prompt(tuple(range(tokens, tokens + 8)))):
            path.unlink()
    written(record, tmp_path)
    assert record.read().segments == SEGMENTS
    (log,) = tmp_path.glob(f"*{SUFFIX}")
    assert len(log.read_text().splitlines()) == 6
    assert begun().read().segments == SEGMENTS


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scenes())
def test_what_is_read_after_a_restart_is_never_more_than_there_is(
    tmp_path: Path, scene: Scene
) -> None:
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    record, engine = DiskRecord(tmp_path, KEY), Engine(scene.block_size)
    cached = CachedBlocks(
        HASHER, MODEL, REVISION, scene.segment_tokens, tiers=scene.tiers, on_written=record.note
    )
    for step in scene.steps:
        cached.apply(scene.play(engine, step))
    for hash_ in engine.written:
        write(tmp_path, hash_)
    record.close()
    there = {
        key
        for prompt in scene.prompts
        for key in prompt.keys(scene.segment_tokens)[
            : _leading(engine, prompt) // (scene.segment_tokens // scene.block_size)
        ]
    }
    later = DiskRecord(tmp_path, KEY)
    assert set(later.read().segments) <= there
    later.close()


def _leading(engine: Engine, prompt: Prompt) -> int:
    found = 0
    for hash_, _ in engine.blocks(prompt):
        if hash_ not in engine.written:
            break
        found += 1
    return found
