"""Where an engine keeps what it compiles."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from deployments.engine.vllm.patches.compile_cache import FOLDER, keep_compiled

ROOT, TRITON = "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"


def test_vllm_and_triton_cache_below_the_given_folder(tmp_path: Path) -> None:
    environ = {FOLDER: str(tmp_path / "compiled")}
    keep_compiled(environ)
    assert environ[ROOT] == str(tmp_path / "compiled/vllm")
    assert environ[TRITON] == str(tmp_path / "compiled/triton")
    assert Path(environ[TRITON]).is_dir()


def test_without_a_folder_the_cache_variables_are_not_set() -> None:
    environ: dict[str, str] = {}
    keep_compiled(environ)
    assert not environ


def test_a_pool_may_set_its_own_cache_folder(tmp_path: Path) -> None:
    environ = {FOLDER: str(tmp_path), ROOT: "/fast"}
    keep_compiled(environ)
    assert environ == {FOLDER: str(tmp_path), ROOT: "/fast", TRITON: str(tmp_path / "triton")}


def test_an_engine_starts_even_if_the_cache_folder_is_not_writable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "compiled").write_text("no folder")
    environ = {FOLDER: str(tmp_path / "compiled")}
    with caplog.at_level(logging.WARNING, "ray.serve"):
        keep_compiled(environ)
    assert environ == {FOLDER: str(tmp_path / "compiled")}
    assert (
        f"failed to use the compile cache; compiling again: {FOLDER}={tmp_path}/compiled: "
        in caplog.text
    )


@pytest.mark.parametrize("cut", ["", "{((1, 64), 0, 'inductor'): {'graph_handle'", b"\xff\x00"])
def test_a_truncated_list_is_removed(tmp_path: Path, cut: str | bytes) -> None:
    folder = tmp_path / "vllm/torch_compile_cache/0123456789/rank_0_0/backbone"
    folder.mkdir(parents=True)
    broken = folder / "vllm_compile_cache.py"
    broken.write_bytes(cut if isinstance(cut, bytes) else cut.encode())
    keep_compiled({FOLDER: str(tmp_path)})
    assert not broken.exists()


def test_a_complete_list_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "vllm/torch_compile_cache/0123456789/rank_1_0/backbone"
    folder.mkdir(parents=True)
    whole = folder / "vllm_compile_cache.py"
    whole.write_text("{((1, 64), 0, 'inductor'): {'graph_handle': ('a', 'b'), 'cache_key': 'c'}}")
    keep_compiled({FOLDER: str(tmp_path)})
    assert whole.exists()
